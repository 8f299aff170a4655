#include "offload/memory/page_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tidegate::offload {
namespace {

using ::testing::HasSubstr;

/// A tree that stands for "/" with the files that the choice depends on.
class PageKindTest : public ::testing::Test {
 public:
  PageKindTest()
      : root_(std::filesystem::path(::testing::TempDir()) /
              ("tidegate-pages-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(root_);
  }
  ~PageKindTest() override { std::filesystem::remove_all(root_); }

 protected:
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  void HavePool(std::size_t free, std::size_t reserved) {
    Write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", std::to_string(free));
    Write("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", std::to_string(reserved));
  }
  Result<ChosenPages> Choose(PageChoice choice, std::size_t expected = 8 * kHugePageBytes) {
    return ChoosePages(
        choice, expected, root_.string() + "/",
        transparent_ ? [] { return true; } : [] { return false; });
  }

  std::filesystem::path root_;
  bool transparent_ = true;
};

TEST_F(PageKindTest, PoolIsUsedWhereItServesAll) {
  HavePool(10, 2);
  EXPECT_EQ(Choose(PageChoice::kAutomatic).value().kind, PageKind::kHugePool);
  EXPECT_EQ(Choose(PageChoice::kHugePool).value().kind, PageKind::kHugePool);
  EXPECT_EQ(Choose(PageChoice::kAutomatic).value().reason, "");
}

TEST_F(PageKindTest, PoolThatIsTooSmallIsLeftAloneAndTold) {
  HavePool(10, 3);
  const ChosenPages pages = Choose(PageChoice::kAutomatic).value();
  EXPECT_EQ(pages.kind, PageKind::kTransparent);
  EXPECT_THAT(pages.reason, HasSubstr("14 MiB free of the 16 MiB"));
}

TEST_F(PageKindTest, DemandedPoolSaysWhatIsShort) {
  HavePool(3, 0);
  const Status status = Choose(PageChoice::kHugePool).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("10 MiB short"));
  EXPECT_THAT(status.message(), HasSubstr("vm.nr_hugepages"));
}

TEST_F(PageKindTest, SmallPagesSayWhy) {
  transparent_ = false;
  EXPECT_EQ(Choose(PageChoice::kAutomatic).value().kind, PageKind::kSmall);
  EXPECT_THAT(Choose(PageChoice::kAutomatic).value().reason,
              HasSubstr("no huge pages for shared memory"));
  Write("sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise never [deny] force");
  const std::string reason = Choose(PageChoice::kNoHugePool).value().reason;
  EXPECT_THAT(reason, HasSubstr("/sys/kernel/mm/transparent_hugepage/shmem_enabled is \"deny\""));
}

TEST_F(PageKindTest, ChoicesAreObeyed) {
  HavePool(100, 0);
  EXPECT_EQ(Choose(PageChoice::kNoHugePool).value().kind, PageKind::kTransparent);
  EXPECT_EQ(Choose(PageChoice::kSmall).value().kind, PageKind::kSmall);
}

}  // namespace
}  // namespace tidegate::offload
