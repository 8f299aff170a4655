#include "collectives/schedule/schedule_words.h"

#include <array>
#include <charconv>

namespace tidegate::schedule_words {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"copy",   "get",  "put",    "reduce",
                                                    "signal", "wait", "partial"};

/// Reads a number off the front of `text`.
bool TakeNumber(std::string_view& text, std::int32_t& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return false;
  text = std::string_view(rest, static_cast<std::size_t>(end - rest));
  return true;
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string SliceWord(const Slice& slice) {
  if (slice == kLongestBlock) return "longest";
  std::string text;
  switch (slice.buffer) {
    case Buffer::kInput:
      text = "input";
      break;
    case Buffer::kOutput:
      text = "output";
      break;
    case Buffer::kStage:
      text = "stage(" + std::to_string(slice.owner) + ")";
      break;
  }
  text += "[" + std::to_string(slice.block);
  if (slice.count != 1) text += "+" + std::to_string(slice.count);
  if (slice.stride != 1) text += "x" + std::to_string(slice.stride);
  text += ']';
  if (slice.origin >= 0) text += "=input[" + std::to_string(slice.origin) + "]";
  return text;
}

std::string OperandWord(const Operand& operand) {
  std::string text = SliceWord(operand.slice);
  if (operand.contributor >= 0) text += ":" + std::to_string(operand.contributor);
  return text;
}

std::string PeerWord(std::int32_t peer) { return peer == kAllPeers ? "all" : std::to_string(peer); }

std::string ChunkWord(int offset) {
  if (offset == 0) return "c";
  return offset > 0 ? "c+" + std::to_string(offset) : "c-" + std::to_string(-offset);
}

std::string_view KindWord(const Step& step) {
  if (step.kind == StepKind::kReduce && step.partial) return kKinds.back();
  return kKinds[static_cast<std::size_t>(step.kind)];
}

bool ReadNumber(std::string_view word, std::int32_t& number) {
  std::int32_t read = 0;
  if (!TakeNumber(word, read) || !word.empty()) return false;
  number = read;
  return true;
}

bool ReadSlice(std::string_view word, Slice& slice) {
  if (word == "longest") {
    slice = kLongestBlock;
    return true;
  }
  Slice read;
  if (Take(word, "input")) {
    read.buffer = Buffer::kInput;
  } else if (Take(word, "output")) {
    read.buffer = Buffer::kOutput;
  } else if (Take(word, "stage(") && TakeNumber(word, read.owner) && Take(word, ")")) {
    read.buffer = Buffer::kStage;
  } else {
    return false;
  }
  if (!Take(word, "[") || !TakeNumber(word, read.block)) return false;
  if (Take(word, "+") && !TakeNumber(word, read.count)) return false;
  if (Take(word, "x") && !TakeNumber(word, read.stride)) return false;
  if (!Take(word, "]")) return false;
  if (Take(word, "=input[") && (!TakeNumber(word, read.origin) || !Take(word, "]"))) return false;
  if (!word.empty() || read.origin < -1) return false;
  slice = read;
  return true;
}

bool ReadOperand(std::string_view word, Operand& operand) {
  Operand read;
  const std::size_t colon = word.find(':');
  if (!ReadSlice(word.substr(0, colon), read.slice)) return false;
  if (colon != std::string_view::npos && !ReadNumber(word.substr(colon + 1), read.contributor))
    return false;
  operand = read;
  return true;
}

bool ReadPeer(std::string_view word, std::int32_t& peer) {
  if (word != "all") return ReadNumber(word, peer);
  peer = kAllPeers;
  return true;
}

bool ReadChunk(std::string_view word, std::int8_t& offset) {
  if (!Take(word, "c")) return false;
  std::int32_t read = 0;
  if (!word.empty()) {
    const bool is_later = word.starts_with('+');
    if (is_later) word.remove_prefix(1);
    if (!ReadNumber(word, read) || read < -INT8_MAX || read > INT8_MAX || is_later != (read > 0))
      return false;
  }
  offset = static_cast<std::int8_t>(read);
  return true;
}

bool ReadKind(std::string_view word, Step& step) {
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (word != kKinds[i]) continue;
    step.partial = i + 1 == kKinds.size();
    step.kind = step.partial ? StepKind::kReduce : static_cast<StepKind>(i);
    return true;
  }
  return false;
}

bool ReadCollective(std::string_view word, Collective& collective) {
  const std::optional<Collective> named = CollectiveNamed(word);
  if (named) collective = *named;
  return named.has_value();
}

}  // namespace tidegate::schedule_words
