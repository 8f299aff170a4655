#pragma once

namespace tidegate::verifier {

/// Ranks that differ by a multiple of `shift` do the same; one of each orbit, the lowest, is
/// executed for all. What concerns rank q is kept in the frame of its representative, in which all
/// numbers of ranks are lower by ShiftOf(q). Without symmetry shift is ranks.
class Orbit {
 public:
  Orbit(int ranks, int shift) : ranks_(ranks), shift_(shift) {}

  int ranks() const { return ranks_; }
  int representatives() const { return shift_; }
  bool is_trivial() const { return shift_ == ranks_; }
  int RepresentativeOf(int rank) const { return rank < shift_ ? rank : rank % shift_; }
  int ShiftOf(int rank) const { return rank - RepresentativeOf(rank); }
  /// From the frame that is `by` lower; 0 <= by < ranks.
  int Forward(int rank, int by) const {
    const int moved = rank + by;
    return moved >= ranks_ ? moved - ranks_ : moved;
  }
  /// Into the frame that is `by` lower.
  int Back(int rank, int by) const {
    const int moved = rank - by;
    return moved < 0 ? moved + ranks_ : moved;
  }
  int Inverse(int by) const { return by == 0 ? 0 : ranks_ - by; }

 private:
  int ranks_;
  int shift_;
};

}  // namespace tidegate::verifier
