// The merging of byte-pair encoding: of all neighbouring pairs that have a rule, the one of lowest rank (leftmost
// among equals) becomes one symbol, until none is left. Near linear in the length of the word.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lazy {

class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Rule {
    uint64_t pair;  // left << 32 | right
    uint32_t rank;
    int32_t merged;
  };
  explicit MergeTable(size_t rules);  // the most rules that will be added
  // The first rule for a pair counts. Rules of equal rank are applied from left to right.
  void add(int32_t left, int32_t right, int32_t merged, uint32_t rank);
  // Null when the pair has no rule.
  const Rule* find(int32_t left, int32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    for (size_t slot = place(pair);; slot = (slot + 1) & mask_) {
      if (rules_[slot].pair == pair) return &rules_[slot];
      if (rules_[slot].rank == kNone) return nullptr;
    }
  }
  // Replaces the symbols by what the rules make of them. Symbols below -1 are allowed: no rule knows them.
  void merge(std::vector<int32_t>& symbols) const;

 private:
  size_t place(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15ull) >> shift_; }
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  std::vector<Rule> rules_;  // open addressing
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace lazy
