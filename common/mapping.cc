#include "common/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "common/units.h"

namespace tidegate {

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Mapping released(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<Mapping> Mapping::Map(int fd, std::size_t size) {
  struct stat file;
  if (fstat(fd, &file) != 0) return ErrnoStatus(errno, "fstat of a file to map");
  if (size == 0 || static_cast<std::size_t>(file.st_size) < size) {
    return Status(StatusCode::kInvalidArgument, "cannot map " + std::to_string(size) +
                                                    " bytes of a file that holds " +
                                                    std::to_string(file.st_size));
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mmap of " + FormatBytes(size));
  return Mapping(static_cast<std::byte*>(data), size);
}

}  // namespace tidegate
