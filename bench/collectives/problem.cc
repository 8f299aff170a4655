#include "bench/collectives/problem.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace tidegate::bench {
namespace {

constexpr int kRoot = 0;

/// Element `index` of the tensor that `rank` brings: small integers, whose sums are exact.
float Value(int rank, std::size_t index) {
  return static_cast<float>((index + 31 * static_cast<std::size_t>(rank)) % 97);
}

void FillFloats(Block block, float (*value)(int, std::size_t), int rank, std::size_t first) {
  auto* const out = reinterpret_cast<float*>(block.data);
  for (std::size_t i = 0; i < block.bytes / sizeof(float); ++i) out[i] = value(rank, first + i);
}

}  // namespace

std::size_t CellBytes(Collective collective, int ranks, std::size_t bytes) {
  if (collective == Collective::kBarrier) return 0;
  const std::size_t unit = kAlignment * static_cast<std::size_t>(ranks);
  return std::max(bytes / unit, std::size_t{1}) * unit;
}

Result<Memory> OrdinaryMemory(std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (data == nullptr)
    return Status(StatusCode::kResourceExhausted,
                  "no memory for a tensor of " + std::to_string(bytes) + " bytes");
  std::memset(data, 0, rounded);
  return Memory(data, [](std::byte* memory) { std::free(memory); });
}

Result<Problem> Problem::Make(const Cell& cell, int rank, const Allocator& allocate) {
  TIDEGATE_CHECK(cell.bytes == CellBytes(cell.collective, cell.ranks, cell.bytes));
  Result<Memory> source = allocate(std::max(cell.bytes, kAlignment));
  TIDEGATE_RETURN_IF_ERROR(source.status());
  Result<Memory> target = allocate(std::max(cell.bytes, kAlignment));
  TIDEGATE_RETURN_IF_ERROR(target.status());
  return Problem(cell, rank, std::move(source).value(), std::move(target).value());
}

Problem::Problem(const Cell& cell, int rank, Memory source, Memory target)
    : cell_(cell),
      rank_(rank),
      part_bytes_(cell.bytes / static_cast<std::size_t>(cell.ranks)),
      source_(std::move(source)),
      target_(std::move(target)) {}

bool Problem::HasInPlace(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
         collective == Collective::kAllReduce;
}

bool Problem::HasRoofline(Collective collective) { return collective != Collective::kBarrier; }

CollectiveRequest Problem::Request(bool in_place) const {
  CollectiveRequest request{.collective = cell_.collective, .dtype = DataType::kFloat32};
  if (Reduces(cell_.collective)) request.reduce_op = ReduceOp::kSum;
  if (IsRooted(cell_.collective)) request.root = kRoot;
  switch (cell_.collective) {
    case Collective::kAllGather:
      request.inputs = {in_place ? Part(target_, rank_) : Part(source_, 0)};
      request.outputs = Parts(target_);
      break;
    case Collective::kReduceScatter:
      request.inputs = Parts(source_);
      request.outputs = {in_place ? Part(source_, rank_) : Part(target_, 0)};
      break;
    case Collective::kAllReduce:
      request.inputs = {Whole(source_)};
      request.outputs = {Whole(in_place ? source_ : target_)};
      break;
    case Collective::kBroadcast:
      if (IsRoot()) request.inputs = {Whole(source_)};
      request.outputs = {Whole(IsRoot() ? source_ : target_)};
      break;
    case Collective::kGather:
      request.inputs = {Part(source_, 0)};
      if (IsRoot()) request.outputs = Parts(target_);
      break;
    case Collective::kScatter:
      if (IsRoot()) request.inputs = Parts(source_);
      request.outputs = {Part(target_, 0)};
      break;
    case Collective::kAllToAll:
      request.even = true;
      request.inputs = Parts(source_);
      request.outputs = Parts(target_);
      break;
    case Collective::kBarrier:
    case Collective::kReduce:
      break;
  }
  return request;
}

void Problem::Roofline(Stores stores) const {
  if (cell_.collective == Collective::kReduceScatter || cell_.collective == Collective::kAllReduce)
    SumOnce(stores, target_.get(), source_.get(), cell_.ranks, part_bytes_);
  switch (cell_.collective) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
    case Collective::kAllReduce:
      CopyOnce(stores, target_.get(), source_.get(), cell_.bytes);
      break;
    case Collective::kBroadcast:
      if (!IsRoot()) CopyOnce(stores, target_.get(), source_.get(), cell_.bytes);
      break;
    case Collective::kGather:
      if (IsRoot()) CopyOnce(stores, target_.get(), source_.get(), cell_.bytes);
      break;
    case Collective::kScatter:
      CopyOnce(stores, target_.get(), source_.get(), part_bytes_);
      break;
    default:
      break;
  }
}

void Problem::Fill(bool in_place) {
  std::memset(target_.get(), 0xff, cell_.bytes);
  FillFloats(Whole(source_), Value, rank_, 0);
  if (cell_.collective == Collective::kAllGather && in_place)
    FillFloats(Part(target_, rank_), Value, rank_, 0);
}

std::int64_t Problem::CountWrong(bool in_place) const {
  const CollectiveRequest request = Request(in_place);
  const Block output = Output(request);
  const auto* const found = reinterpret_cast<const float*>(output.data);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < output.bytes / sizeof(float); ++i)
    if (found[i] != Expected(i)) ++wrong;
  return wrong;
}

void Problem::Clear() {
  std::memset(source_.get(), 0, cell_.bytes);
  std::memset(target_.get(), 0, cell_.bytes);
}

Block Problem::Part(const Memory& memory, int block) const {
  return {memory.get() + static_cast<std::size_t>(block) * part_bytes_, part_bytes_};
}

Blocks Problem::Parts(const Memory& memory) const {
  Blocks parts;
  parts.reserve(static_cast<std::size_t>(cell_.ranks));
  for (int block = 0; block < cell_.ranks; ++block) parts.push_back(Part(memory, block));
  return parts;
}

Block Problem::Output(const CollectiveRequest& request) const {
  if (request.outputs.empty()) return {};
  // Blocks of one output lie one after the other.
  return {request.outputs.front().data, request.outputs.front().bytes * request.outputs.size()};
}

float Problem::Expected(std::size_t element) const {
  const std::size_t part = part_bytes_ / sizeof(float);
  const auto rank = static_cast<std::size_t>(rank_);
  float sum = 0;
  switch (cell_.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      return Value(static_cast<int>(element / part), element % part);
    case Collective::kAllToAll:
      return Value(static_cast<int>(element / part), rank * part + element % part);
    case Collective::kScatter:
      return Value(kRoot, rank * part + element);
    case Collective::kBroadcast:
      return Value(kRoot, element);
    case Collective::kReduceScatter:
      for (int from = 0; from < cell_.ranks; ++from) sum += Value(from, rank * part + element);
      return sum;
    case Collective::kAllReduce:
      for (int from = 0; from < cell_.ranks; ++from) sum += Value(from, element);
      return sum;
    case Collective::kBarrier:
    case Collective::kReduce:
      break;
  }
  return 0;
}

}  // namespace tidegate::bench
