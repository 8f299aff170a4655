#include "collectives/simulator/program.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>

namespace tidegate {
namespace {

constexpr std::uint64_t kPartAlignment = 64;  // The communicator's.
constexpr std::int32_t kMostLag = 1 << 24;

std::size_t At(std::int64_t index) { return static_cast<std::size_t>(index); }

/// The sizes of a rank's input or output blocks, without a list of them where they are alike.
struct Blocks {
  std::vector<std::uint64_t> bytes;  ///< One entry: all alike.
  std::int64_t count = 0;

  std::uint64_t at(std::int64_t block) const { return bytes[bytes.size() == 1 ? 0 : At(block)]; }
  std::uint64_t Longest() const {
    return bytes.empty() || count == 0 ? 0 : *std::ranges::max_element(bytes);
  }
};

Blocks Parts(std::uint64_t bytes, int parts) {
  Blocks blocks{{}, parts};
  const auto count = static_cast<std::uint64_t>(parts);
  const std::uint64_t even = (bytes + count - 1) / count;
  const std::uint64_t part =
      parts == 1 ? bytes : (even + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t begin = std::min(i * part, bytes);
    blocks.bytes.push_back(std::min(begin + part, bytes) - begin);
  }
  return blocks;
}

class Compiler {
 public:
  Compiler(const Schedule& schedule, const BlockSizes& sizes) : schedule_(schedule) {
    FindBlocks(sizes);
  }

  Result<Program> Compile(const BlockSizes& sizes) {
    TIDEGATE_RETURN_IF_ERROR(CheckSizes(sizes));
    program_.sub_slots = schedule_.sub_slots;
    program_.period = schedule_.period;
    program_.marks = schedule_.Marks();
    program_.max_lag = schedule_.MaxLag();
    program_.longest = std::max(inputs_.Longest(), outputs_.Longest());
    for (const Step& step : schedule_.steps) TIDEGATE_RETURN_IF_ERROR(Add(step));
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      program_.ops[i].length = NumberOf(std::move(op_lengths_[i]));
    IndexOps();
    for (const Program::Way& way : program_.ways)
      if (way.kind == Program::Way::Kind::kPut)
        program_.put_list_to.emplace(way.peers[0],
                                     static_cast<std::int32_t>(program_.put_list_to.size()));
    return std::move(program_);
  }

 private:
  using Kind = Program::Kind;

  void FindBlocks(const BlockSizes& sizes) {
    const Blocks all{sizes.bytes, schedule_.ranks};
    const auto own = [&] {
      const bool has = !sizes.bytes.empty() && At(schedule_.rank) < At(schedule_.ranks) &&
                       (sizes.bytes.size() == 1 || At(schedule_.rank) < sizes.bytes.size());
      return Blocks{{has ? all.at(schedule_.rank) : 0}, 1};
    };
    switch (schedule_.collective) {
      case Collective::kAllGather:
      case Collective::kGather:
        inputs_ = own();
        outputs_ = all;
        break;
      case Collective::kReduceScatter:
      case Collective::kScatter:
        inputs_ = all;
        outputs_ = own();
        break;
      case Collective::kAllToAll:
        inputs_ = outputs_ = all;
        break;
      case Collective::kAllReduce:
      case Collective::kBroadcast:
      case Collective::kReduce:
        if (sizes.bytes.size() == 1 && schedule_.parts >= 1)
          inputs_ = outputs_ = Parts(sizes.bytes[0], schedule_.parts);
        break;
      case Collective::kBarrier:
        break;
    }
  }

  Status CheckSizes(const BlockSizes& sizes) const {
    const bool is_whole = schedule_.collective == Collective::kAllReduce ||
                          schedule_.collective == Collective::kBroadcast ||
                          schedule_.collective == Collective::kReduce;
    const std::size_t count = sizes.bytes.size();
    const bool fits = schedule_.collective == Collective::kBarrier ||  //
                      count == 1 || (!is_whole && count == At(schedule_.ranks));
    if (!fits)
      return Status(StatusCode::kInvalidArgument, std::to_string(count) + " block sizes for " +
                                                      std::string(NameOf(schedule_.collective)) +
                                                      " of " + std::to_string(schedule_.ranks) +
                                                      " ranks; give one" +
                                                      (is_whole ? "" : ", or one for each rank"));
    if (schedule_.even &&
        std::ranges::adjacent_find(sizes.bytes, std::not_equal_to<>()) != sizes.bytes.end())
      return Status(StatusCode::kInvalidArgument,
                    schedule_.name + " of " + std::string(NameOf(schedule_.collective)) +
                        " is for blocks of one size alone: its ranks pass on blocks of others, "
                        "whose sizes they take from their own");
    if (schedule_.ranks < 1 || schedule_.rank < 0 || schedule_.rank >= schedule_.ranks ||
        schedule_.sub_slots < 1 || schedule_.period < 1 || schedule_.parts < 1)
      return Status(StatusCode::kInvalidArgument,
                    "the schedule of rank " + std::to_string(schedule_.rank) + " of " +
                        std::to_string(schedule_.ranks) +
                        " has a rank, sub-slots, a period or parts out of range");
    return Status();
  }

  Status Bad(const std::string& what) const {
    return Status(StatusCode::kInvalidArgument, "step " + std::to_string(steps_ - 1) + " of rank " +
                                                    std::to_string(schedule_.rank) + " in " +
                                                    schedule_.name + ": " + what);
  }

  std::int32_t Relative(int peer) const {
    return (peer - schedule_.rank + schedule_.ranks) % schedule_.ranks;
  }
  bool IsRank(int peer) const { return peer >= 0 && peer < schedule_.ranks; }
  bool IsRemote(const Slice& slice) const {
    return slice.buffer == Buffer::kStage && slice.owner != schedule_.rank;
  }

  Status Add(const Step& step) {
    ++steps_;
    Program::Op op;
    op.lag = step.lag;
    op.mark = step.mark;
    op.guard_offset = step.guard_offset;
    op.wait_offset = step.wait_offset;
    if (step.lag < 0 || step.lag > kMostLag || step.mark < 0 || step.mark > kMostLag)
      return Bad("its lag or mark is out of range");
    if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait) {
      if (step.peer != kAllPeers && !IsRank(step.peer))
        return Bad("there is no rank " + std::to_string(step.peer));
      Program::Length length;
      TIDEGATE_RETURN_IF_ERROR(Measure(step.extent, /*is_move=*/false, length));
      op.kind = step.kind == StepKind::kWait ? Kind::kWait : Kind::kSignal;
      if (op.kind == Kind::kWait && step.peer != kAllPeers)
        op.way = WayOf({Program::Way::Kind::kWait, 0, {Relative(step.peer)}});
      program_.ops.push_back(op);
      op_lengths_.push_back(std::move(length));
      return Status();
    }
    Program::Length length;
    TIDEGATE_RETURN_IF_ERROR(Measure(step.extent, /*is_move=*/true, length));
    TIDEGATE_RETURN_IF_ERROR(SetWays(step, op));
    Append(op, std::move(length));
    return Status();
  }

  Status SetWays(const Step& step, Program::Op& op) {
    Program::Way way;
    const auto read = [&](const Slice& slice) {
      ++way.reads;
      if (!IsRemote(slice)) return true;
      way.peers.push_back(IsRank(slice.owner) ? Relative(slice.owner) : -1);
      return way.peers.back() >= 0;
    };
    if (IsRemote(step.dst) && !IsRank(step.dst.owner))
      return Bad("there is no rank " + std::to_string(step.dst.owner));
    const auto put = [&] {
      return WayOf({Program::Way::Kind::kPut, 0, {Relative(step.dst.owner)}});
    };
    if (step.kind == StepKind::kPut) {
      op.kind = Kind::kPut;
      op.way = put();
      return Status();
    }
    if (step.kind == StepKind::kReduce) {
      if (step.first_operand < 0 || step.operand_count < 0 ||
          At(step.first_operand) + At(step.operand_count) > schedule_.operands.size())
        return Bad("its operands do not exist");
      for (int i = 0; i < step.operand_count; ++i)
        if (!read(schedule_.operands[At(step.first_operand + i)].slice))
          return Bad("an operand lies on a rank that does not exist");
    } else if (!read(step.src)) {
      return Bad("there is no rank " + std::to_string(step.src.owner));
    }
    std::ranges::sort(way.peers);
    op.way = WayOf(std::move(way));
    op.kind = Kind::kLocal;
    if (IsRemote(step.dst)) {
      op.kind = Kind::kReducePut;
      op.put_way = put();
    }
    return Status();
  }

  /// Moves of one way that follow each other are one. To copies and puts that makes no difference;
  /// a reduction for another rank sends its first blocks later than the executor would. So ranks
  /// whose runs of blocks differ only because numbers wrap around do the same.
  void Append(const Program::Op& op, Program::Length length) {
    if (!program_.ops.empty()) {
      const Program::Op& last = program_.ops.back();
      const bool is_move = op.kind != Kind::kSignal && op.kind != Kind::kWait;
      const bool continues = is_move && last.kind == op.kind && last.lag == op.lag &&
                             last.way == op.way && last.put_way == op.put_way &&
                             last.guard_offset == 0 && op.guard_offset == 0;
      if (continues) {
        Program::Length& sum = op_lengths_.back();
        for (const Program::Length::Part& part : length.parts) AddPart(part, sum);
        sum.longest = std::max(sum.longest, length.longest);
        return;
      }
    }
    program_.ops.push_back(op);
    op_lengths_.push_back(std::move(length));
  }

  static void AddPart(const Program::Length::Part& part, Program::Length& length) {
    const auto at =
        std::ranges::lower_bound(length.parts, part.bytes, {}, &Program::Length::Part::bytes);
    if (at != length.parts.end() && at->bytes == part.bytes) {
      at->count += part.count;
    } else {
      length.parts.insert(at, part);
    }
  }

  Status Measure(const Slice& extent, bool is_move, Program::Length& length) const {
    if (extent.block < 0) {
      if (is_move) return Bad("a move without blocks to say how long it is");
      length.longest = program_.longest;
    } else {
      const Blocks& blocks = extent.buffer == Buffer::kInput ? inputs_ : outputs_;
      const std::int64_t last = extent.block + std::int64_t{extent.count - 1} * extent.stride;
      if (extent.buffer == Buffer::kStage || extent.count < 1 || last < 0 ||
          std::max<std::int64_t>(last, extent.block) >= blocks.count)
        return Bad("blocks " + std::to_string(extent.block) + " to " + std::to_string(last) +
                   " of " + std::to_string(blocks.count));
      if (blocks.bytes.size() == 1) {
        length.longest = blocks.bytes[0];
        if (is_move)
          length.parts.push_back({blocks.bytes[0], static_cast<std::uint32_t>(extent.count)});
      } else {
        for (int i = 0; i < extent.count; ++i) {
          const std::uint64_t bytes = blocks.at(extent.at(i));
          length.longest = std::max(length.longest, bytes);
          if (is_move) AddPart({bytes, 1}, length);
        }
      }
    }
    return Status();
  }

  std::int32_t NumberOf(Program::Length length) {
    std::vector<std::uint64_t> key = {length.longest};
    for (const Program::Length::Part& part : length.parts) {
      key.push_back(part.bytes);
      key.push_back(part.count);
    }
    const auto [entry, is_new] =
        lengths_.try_emplace(std::move(key), static_cast<std::int32_t>(program_.lengths.size()));
    if (is_new) program_.lengths.push_back(std::move(length));
    return entry->second;
  }

  std::int32_t WayOf(Program::Way way) {
    std::vector<std::int32_t> key = {static_cast<std::int32_t>(way.kind), way.reads};
    key.insert(key.end(), way.peers.begin(), way.peers.end());
    const auto [entry, is_new] =
        ways_.try_emplace(std::move(key), static_cast<std::int32_t>(program_.ways.size()));
    if (is_new) program_.ways.push_back(std::move(way));
    return entry->second;
  }

  void IndexOps() {
    program_.lag_begin.assign(At(program_.max_lag) + 2, 0);
    for (const Program::Op& op : program_.ops) ++program_.lag_begin[At(op.lag) + 1];
    for (std::size_t lag = 1; lag < program_.lag_begin.size(); ++lag)
      program_.lag_begin[lag] += program_.lag_begin[lag - 1];
    program_.by_lag.resize(program_.ops.size());
    std::vector<std::int32_t> next = program_.lag_begin;
    for (std::size_t i = 0; i < program_.ops.size(); ++i)
      program_.by_lag[At(next[At(program_.ops[i].lag)]++)] = static_cast<std::int32_t>(i);
  }

  const Schedule& schedule_;
  Blocks inputs_;
  Blocks outputs_;
  Program program_;
  std::int64_t steps_ = 0;
  std::vector<Program::Length> op_lengths_;
  std::map<std::vector<std::uint64_t>, std::int32_t> lengths_;
  std::map<std::vector<std::int32_t>, std::int32_t> ways_;
};

}  // namespace

std::uint64_t Program::Length::BytesOf(std::int64_t chunk, std::uint64_t chunk_bytes) const {
  const std::uint64_t begin = static_cast<std::uint64_t>(chunk) * chunk_bytes;
  std::uint64_t bytes = 0;
  for (const Part& part : parts)
    if (part.bytes > begin) bytes += part.count * std::min(chunk_bytes, part.bytes - begin);
  return bytes;
}

bool Program::SameAs(const Program& other) const {
  return ops == other.ops && ways == other.ways && lengths == other.lengths &&
         sub_slots == other.sub_slots && period == other.period && longest == other.longest;
}

bool Program::IsReordered(const Program& other) const {
  using Key = std::tuple<Kind, int, int, int, int, Way, Way, Length>;
  const auto keys = [](const Program& program) {
    const auto way = [&](std::int32_t number) {
      return number < 0 ? Way() : program.ways[At(number)];
    };
    std::vector<Key> all;
    all.reserve(program.ops.size());
    for (const Op& op : program.ops)
      all.emplace_back(op.kind, op.wait_offset, op.guard_offset, op.lag, op.mark, way(op.way),
                       way(op.put_way), program.lengths[At(op.length)]);
    std::ranges::sort(all);
    return all;
  };
  return ops.size() == other.ops.size() && sub_slots == other.sub_slots && period == other.period &&
         longest == other.longest && keys(*this) == keys(other);
}

std::uint64_t Program::Hash() const {
  std::uint64_t hash = ops.size();
  const auto mix = [&hash](std::int64_t word) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 31;
  };
  for (const Op& op : ops) {
    mix(static_cast<std::int64_t>(op.kind));
    mix(op.way);
    mix(op.length);
    mix(op.mark);
  }
  for (const Way& way : ways)
    for (const std::int32_t peer : way.peers) mix(peer);
  return hash;
}

Result<Program> Compile(const Schedule& schedule, const BlockSizes& sizes) {
  return Compiler(schedule, sizes).Compile(sizes);
}

}  // namespace tidegate
