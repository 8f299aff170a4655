#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/schedule/schedule.h"

namespace tidegate::schedule_words {

// The words that the text and the JSON form of a schedule share, written and read. For the sources
// of this folder. Readers leave their result as it is and return false where the word is none of
// theirs; they look at the form alone, not at what the schedule has.

std::string SliceWord(
    const Slice& slice);  ///< "input[2]", "stage(1)[0+3x2]", "stage(1)[0]=input[2]", "longest".
std::string OperandWord(const Operand& operand);  ///< A slice, or "<slice>:<contributor>".
std::string PeerWord(std::int32_t peer);          ///< "all" or a rank.
std::string ChunkWord(int offset);                ///< "c", "c+2", "c-1".
std::string_view KindWord(const Step& step);      ///< "copy", ...; "partial" of a partial reduce.

bool ReadNumber(std::string_view word, std::int32_t& number);
bool ReadSlice(std::string_view word, Slice& slice);
bool ReadOperand(std::string_view word, Operand& operand);
bool ReadPeer(std::string_view word, std::int32_t& peer);
bool ReadChunk(std::string_view word, std::int8_t& offset);
bool ReadKind(std::string_view word, Step& step);  ///< Sets kind and partial.
bool ReadCollective(std::string_view word, Collective& collective);

// What was expected where a reader said no.
inline constexpr std::string_view kAnyNumber = "a whole number of at most 10 digits";
inline constexpr std::string_view kAnySlice =
    "a slice such as input[0], output[2+3x4] (3 blocks from 2 in steps of 4) or stage(1)[0]";
inline constexpr std::string_view kAnyExtent = "a slice of input or output, or longest";
inline constexpr std::string_view kAnyOperand =
    "a slice, with :R behind it where it is what rank R contributes";
inline constexpr std::string_view kAnyPeer = "a rank or all";
inline constexpr std::string_view kAnyChunk = "c, c+N or c-N with N up to 127";
inline constexpr std::string_view kAnyKind = "copy, get, put, reduce, partial, signal or wait";
inline constexpr std::string_view kAnyCollective =
    "all_gather, reduce_scatter, all_reduce, broadcast, reduce, gather, scatter, all_to_all or "
    "barrier";

}  // namespace tidegate::schedule_words
