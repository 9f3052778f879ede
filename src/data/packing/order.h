// Orders that are computed without arrays of indices: the schedule that mixes corpora by weight, and keyed
// permutations.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace lazy {

// Selects the corpus of a mixture for each training sequence. The corpora are the leaves of a balanced binary tree.
// Each inner node divides its sequences by a Beatty sequence: of the first n sequences, floor(n f + phase) belong to
// the left subtree, where f is the share of the left subtree. A prefix of n sequences therefore contains n w sequences
// of a corpus with share w, with an error below the depth of the tree (1 for two corpora, 2 for up to four). With
// independent random draws, the error would be about sqrt(n w (1 - w)). The cost of at() is proportional to the depth
// of the tree.
class MixSchedule {
 public:
  // `weights` must be above zero and may use any unit. The phases are derived from `seed`; if `shuffle` is false, they
  // are 0.
  MixSchedule(const std::vector<double>& weights, uint64_t seed, bool shuffle);
  struct SequenceIndex {
    int64_t corpus = 0;
    int64_t index = 0;  // number of earlier sequences from the same corpus
  };
  SequenceIndex at(int64_t position) const;
  // Returns how many of the first `positions` sequences come from each corpus.
  std::vector<int64_t> counts(int64_t positions) const;
  const std::vector<double>& shares() const { return shares_; }  // normalized weights with sum 1
  int64_t depth() const { return depth_; }

 private:
  struct Node {
    uint64_t fraction = 0, phase = 0;  // numbers in [0, 1), in units of 2^-64
    int64_t left = 0, right = 0;       // children: index of a node, or -1 - (index of a corpus) for a leaf
    uint64_t left_of(uint64_t n) const {
      return static_cast<uint64_t>((static_cast<unsigned __int128>(n) * fraction + phase) >> 64);
    }
  };
  int64_t build(int64_t begin, int64_t end, uint64_t seed, bool shuffle, int64_t depth);
  std::vector<double> shares_;
  std::vector<Node> nodes_;
  int64_t root_ = -1, depth_ = 0;
};

// A keyed permutation of [0, size) that can be evaluated at any index in constant time and memory. It is a Feistel
// network over the smallest power of two that is at least `size`, iterated until the result is below `size` (cycle
// walking, Black and Rogaway 2002), which needs fewer than two iterations on average. Equal keys give equal orders on
// every machine.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t place) const;  // requires place < size

 private:
  static constexpr int kRounds = 8;
  uint64_t scramble(uint64_t place) const;
  uint64_t size_;
  int low_bits_, high_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace lazy
