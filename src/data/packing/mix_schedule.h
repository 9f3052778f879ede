// Which corpus of a mixture each training sequence comes from: shares as even as whole numbers allow, at any prefix.
#pragma once
#include <cstdint>
#include <vector>

namespace lazy {

// The corpora are the leaves of a balanced binary tree. Each inner node parts what reaches it by a Beatty sequence: of
// the first n sequences floor(n f + phase) go left, where f is the left side's share. So a prefix of n sequences holds
// n w of a corpus with share w, give or take less than the depth of the tree (1 for two corpora, 2 for up to four);
// independent draws would stray by sqrt(n w (1 - w)). Any place is found in as many steps as the tree is deep, from the
// place alone.
class MixSchedule {
 public:
  // Weights above zero, in any unit. Phases come from `seed`; without `shuffle` they are 0.
  MixSchedule(const std::vector<double>& weights, uint64_t seed, bool shuffle);
  struct Place {
    int64_t corpus = 0;
    int64_t index = 0;  // how many of its sequences came before
  };
  Place at(int64_t position) const;
  std::vector<int64_t> counts(int64_t positions) const;          // of each corpus among the first `positions`
  const std::vector<double>& shares() const { return shares_; }  // the weights, summing to 1
  int64_t depth() const { return depth_; }

 private:
  struct Node {
    uint64_t fraction = 0, phase = 0;  // in units of 2^-64
    int64_t left = 0, right = 0;       // a node, or -1 - corpus
    uint64_t left_of(uint64_t n) const {
      return static_cast<uint64_t>((static_cast<unsigned __int128>(n) * fraction + phase) >> 64);
    }
  };
  int64_t build(int64_t begin, int64_t end, uint64_t seed, bool shuffle, int64_t depth);
  std::vector<double> shares_;
  std::vector<Node> nodes_;
  int64_t root_ = -1, depth_ = 0;
};

}  // namespace lazy
