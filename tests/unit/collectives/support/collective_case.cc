#include "tests/unit/collectives/support/collective_case.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

namespace tidegate::testing {

std::string Describe(const CollectiveCase& test_case) {
  std::string text(NameOf(test_case.collective));
  text += " " + std::string(NameOf(test_case.reduce_op)) + " ranks " +
          std::to_string(test_case.ranks) + " root " + std::to_string(test_case.root) + " counts";
  for (const int count : test_case.counts) text += " " + std::to_string(count);
  return text + " seed " + std::to_string(test_case.seed) + (test_case.in_place ? " in place" : "");
}

bool IsEven(const CollectiveCase& test_case) {
  const auto& counts = test_case.counts;
  return std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
}

std::int32_t CaseMemory::InputValue(int rank, int block, int index) const {
  std::uint32_t x = case_.seed + static_cast<std::uint32_t>(rank) * 7919u +
                    static_cast<std::uint32_t>(block) * 104729u +
                    static_cast<std::uint32_t>(index) * 2654435761u;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  return static_cast<std::int32_t>(x % 2000u) - 1000;
}

CaseMemory::Values CaseMemory::MakeInput(int rank, int block, int count) const {
  Values values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = InputValue(rank, block, i);
  return values;
}

CaseMemory::Values CaseMemory::Reduced(std::size_t block) const {
  Values values = inputs_[0][block];
  for (std::size_t rank = 1; rank < inputs_.size(); ++rank) {
    const Values& other = inputs_[rank][block];
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          case_.reduce_op == ReduceOp::kMax ? std::max(values[i], other[i]) : values[i] + other[i];
  }
  return values;
}

void CaseMemory::Expect(std::size_t rank, Values values) {
  outputs_[rank].push_back(Values(values.size(), -123456));
  expected_[rank].push_back(std::move(values));
}

CaseMemory::CaseMemory(const CollectiveCase& test_case)
    : case_(test_case),
      inputs_(static_cast<std::size_t>(test_case.ranks)),
      outputs_(inputs_.size()),
      expected_(inputs_.size()),
      placed_(inputs_.size()) {
  for (int rank = 0; rank < case_.ranks; ++rank) MakeInputs(rank);
  // Once for all ranks: the same values are expected on each.
  Values reduced;
  if (case_.collective == Collective::kAllReduce || case_.collective == Collective::kReduce)
    reduced = Reduced(0);
  const auto root = static_cast<std::size_t>(std::max(case_.root, 0));
  for (std::size_t rank = 0; rank < inputs_.size(); ++rank) {
    switch (case_.collective) {
      case Collective::kAllGather:
        for (const auto& from : inputs_) Expect(rank, from.front());
        break;
      case Collective::kReduceScatter:
        Expect(rank, Reduced(rank));
        break;
      case Collective::kAllReduce:
        Expect(rank, reduced);
        break;
      case Collective::kBroadcast:
        Expect(rank, inputs_[root].front());
        if (rank == root) outputs_[rank] = inputs_[rank];
        break;
      case Collective::kReduce:
        if (rank == root) Expect(rank, reduced);
        break;
      case Collective::kGather:
        if (rank == root)
          for (const auto& from : inputs_) Expect(rank, from.front());
        break;
      case Collective::kScatter:
        Expect(rank, inputs_[root][rank]);
        break;
      case Collective::kAllToAll:
        for (const auto& from : inputs_) Expect(rank, from[rank]);
        break;
      case Collective::kBarrier:
        break;
    }
  }
}

void CaseMemory::MakeInputs(int rank) {
  const int ranks = case_.ranks;
  const auto count = [&](int i) { return case_.counts[static_cast<std::size_t>(i)]; };
  auto& inputs = inputs_[static_cast<std::size_t>(rank)];
  switch (case_.collective) {
    case Collective::kAllGather:
      inputs.push_back(MakeInput(rank, 0, count(rank)));
      break;
    case Collective::kReduceScatter:
      for (int to = 0; to < ranks; ++to) inputs.push_back(MakeInput(rank, to, count(to)));
      break;
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kGather:
      inputs.push_back(MakeInput(rank, 0, count(0)));
      break;
    case Collective::kBroadcast:
      if (rank == case_.root) inputs.push_back(MakeInput(rank, 0, count(0)));
      break;
    case Collective::kScatter:
      if (rank == case_.root)
        for (int to = 0; to < ranks; ++to) inputs.push_back(MakeInput(rank, to, count(0)));
      break;
    case Collective::kAllToAll:
      for (int to = 0; to < ranks; ++to)
        inputs.push_back(MakeInput(rank, to, count(rank * ranks + to)));
      break;
    case Collective::kBarrier:
      break;
  }
}

const Blocks& CaseMemory::Movable(const CollectiveRequest& request) const {
  // Of an all-gather in place the input is a part of the output.
  const bool gathers = case_.in_place && case_.collective == Collective::kAllGather;
  return gathers ? request.outputs : request.inputs;
}

std::size_t CaseMemory::BytesToPlace(int rank) {
  const CollectiveRequest request = RequestFor(rank);
  std::size_t bytes = 0;
  for (const Block& block : Movable(request)) bytes += block.bytes;
  return bytes;
}

std::size_t CaseMemory::Place(int rank, std::byte* memory) {
  Placed& placed = placed_[static_cast<std::size_t>(rank)];
  CollectiveRequest request = RequestFor(rank);
  placed.memory = memory;
  std::map<std::byte*, std::byte*> moved;
  for (const Block& block : Movable(request)) {
    moved[block.data] = memory + placed.bytes;
    if (block.bytes > 0) std::memcpy(memory + placed.bytes, block.data, block.bytes);
    placed.bytes += block.bytes;
  }
  for (Blocks* blocks : {&request.inputs, &request.outputs})
    for (Block& block : *blocks)
      if (moved.contains(block.data)) block.data = moved.at(block.data);
  placed.request = std::move(request);
  return placed.bytes;
}

void CaseMemory::Scribble(int rank) {
  const Placed& placed = placed_[static_cast<std::size_t>(rank)];
  if (placed.bytes > 0) std::memset(placed.memory, 0x5A, placed.bytes);
}

CollectiveRequest CaseMemory::RequestFor(int rank) {
  if (const Placed& placed = placed_[static_cast<std::size_t>(rank)]; placed.memory != nullptr)
    return placed.request;
  const auto blocks = [](std::vector<Values>& tensors) {
    Blocks result;
    for (Values& tensor : tensors)
      result.push_back(
          {reinterpret_cast<std::byte*>(tensor.data()), tensor.size() * sizeof(std::int32_t)});
    return result;
  };
  const auto row = static_cast<std::size_t>(rank);
  const auto own = [&](Blocks all) {
    return Blocks{all[case_.collective == Collective::kReduceScatter ? row : 0]};
  };
  if (case_.in_place && case_.collective == Collective::kAllGather)
    outputs_[row][row] = inputs_[row].front();
  CollectiveRequest request{.collective = case_.collective,
                            .dtype = DataType::kInt32,
                            .reduce_op = case_.reduce_op,
                            .root = case_.root,
                            .inputs = blocks(inputs_[row]),
                            .outputs = blocks(outputs_[row])};
  if (case_.in_place && case_.collective == Collective::kAllGather)
    request.inputs = {request.outputs[row]};
  if (ResultIsInput(rank)) request.outputs = own(request.inputs);
  return request;
}

/// Whether the only output is memory of the inputs.
bool CaseMemory::ResultIsInput(int rank) const {
  return case_.in_place && case_.collective != Collective::kAllGather &&
         !expected_[static_cast<std::size_t>(rank)].empty();
}

std::string CaseMemory::FirstError() const {
  for (int rank = 0; rank < case_.ranks; ++rank)
    if (std::string error = ErrorOf(rank); !error.empty()) return error;
  return "";
}

std::string CaseMemory::ErrorOf(int rank) const {
  const auto row = static_cast<std::size_t>(rank);
  const bool scattered = case_.collective == Collective::kReduceScatter;
  for (std::size_t block = 0; block < expected_[row].size(); ++block) {
    const Values& own =
        ResultIsInput(rank) ? inputs_[row][scattered ? row : 0] : outputs_[row][block];
    const std::int32_t* const result =
        placed_[row].memory == nullptr
            ? own.data()
            : reinterpret_cast<const std::int32_t*>(placed_[row].request.outputs[block].data);
    for (std::size_t i = 0; i < expected_[row][block].size(); ++i)
      if (result[i] != expected_[row][block][i])
        return Describe(case_) + ": rank " + std::to_string(rank) + " block " +
               std::to_string(block) + " index " + std::to_string(i) + " is " +
               std::to_string(result[i]) + ", expected " + std::to_string(expected_[row][block][i]);
  }
  return "";
}

std::vector<CollectiveCase> AllCases(int ranks, int chunk_elements, std::uint32_t seed) {
  std::vector<CollectiveCase> cases;
  const auto add = [&](Collective collective, ReduceOp op, int root, std::vector<int> counts) {
    cases.push_back({collective, op, ranks, root, std::move(counts), ++seed});
  };
  const auto n = static_cast<std::size_t>(ranks);
  const std::vector<int> sizes = {0, 1, 7, chunk_elements + 1, 5 * chunk_elements + 3};
  for (const int size : sizes) {
    add(Collective::kAllGather, ReduceOp::kNone, -1, std::vector<int>(n, size));
    add(Collective::kReduceScatter, ReduceOp::kSum, -1, std::vector<int>(n, size));
    add(Collective::kAllReduce, ReduceOp::kMax, -1, {size});
    add(Collective::kAllReduce, ReduceOp::kSum, -1, {size * ranks});
    add(Collective::kAllToAll, ReduceOp::kNone, -1, std::vector<int>(n * n, size));
    for (int root = 0; root < ranks; root += 2) {
      add(Collective::kBroadcast, ReduceOp::kNone, root, {size});
      add(Collective::kReduce, ReduceOp::kSum, root, {size});
      add(Collective::kGather, ReduceOp::kNone, root, {size});
      add(Collective::kScatter, ReduceOp::kNone, root, {size});
    }
  }
  std::vector<int> uneven(n);
  std::vector<int> uneven_pairs(n * n);
  for (std::size_t i = 0; i < uneven.size(); ++i)
    uneven[i] = static_cast<int>(i % 3) * chunk_elements + static_cast<int>(i);
  for (std::size_t i = 0; i < uneven_pairs.size(); ++i)
    uneven_pairs[i] = static_cast<int>((i * 7) % 5) * chunk_elements / 2;
  add(Collective::kAllGather, ReduceOp::kNone, -1, uneven);
  add(Collective::kReduceScatter, ReduceOp::kSum, -1, uneven);
  add(Collective::kAllToAll, ReduceOp::kNone, -1, uneven_pairs);
  add(Collective::kBarrier, ReduceOp::kNone, -1, {0});
  const std::size_t separate = cases.size();
  for (std::size_t i = 0; i < separate; ++i) {
    switch (cases[i].collective) {
      case Collective::kAllGather:
      case Collective::kReduceScatter:
      case Collective::kAllReduce:
      case Collective::kReduce:
        cases.push_back(cases[i]);
        cases.back().in_place = true;
        break;
      default:
        break;
    }
  }
  return cases;
}

}  // namespace tidegate::testing
