#include "offload/step_runner.h"

#include <cstring>

#include "common/check.h"

namespace tidegate::offload {
namespace {

void CopyOut(const StepTensor& tensor, const TileSpace::Piece& piece) {
  const std::size_t size = tensor.copy_element_bytes;
  const auto* const parameter = static_cast<const std::byte*>(tensor.operands.parameter);
  std::memcpy(tensor.copy + piece.first * size, parameter + (tensor.first + piece.first) * size,
              piece.count * size);
}

}  // namespace

Status StepRunner::Update(std::span<const StepTensor> tensors, std::span<double> squares) {
  TIDEGATE_CHECK(squares.empty() || squares.size() == tensors.size());
  const bool wanted = !squares.empty();
  TIDEGATE_RETURN_IF_ERROR(RunPieces(tensors, [&](const TileSpace::Piece& piece) {
    const StepTensor& tensor = tensors[piece.tensor];
    tensor.update(tensor.operands, tensor.first + piece.first, piece.count, tensor.coefficients,
                  wanted ? space_.BlocksOf(piece) : nullptr);
    if (tensor.copy != nullptr) CopyOut(tensor, piece);
  }));
  if (wanted) space_.AddUp(squares);
  return {};
}

Status StepRunner::Sums(std::span<const StepTensor> tensors, float factor,
                        std::span<double> squares) {
  TIDEGATE_CHECK(squares.size() == tensors.size());
  TIDEGATE_RETURN_IF_ERROR(RunPieces(tensors, [&](const TileSpace::Piece& piece) {
    const StepTensor& tensor = tensors[piece.tensor];
    tensor.sums(tensor.operands.gradient, tensor.first + piece.first, piece.count, factor,
                space_.BlocksOf(piece));
  }));
  space_.AddUp(squares);
  return {};
}

template <typename Body>
Status StepRunner::RunPieces(std::span<const StepTensor> tensors, const Body& body) {
  space_.CutFor(tensors.size(), [&](std::size_t t) { return tensors[t].operands.count; });
  return pool_.Run(space_.tiles(), [&](std::size_t tile, int) {
    for (const TileSpace::Piece& piece : space_.Pieces(tile)) body(piece);
    return Status();
  });
}

}  // namespace tidegate::offload
