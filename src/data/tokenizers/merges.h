// The merge loop of byte-pair encoding, and a cache of words that have already been merged.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/checksum.h"

namespace lazy {

// Merge rules for pairs of symbols. merge() repeatedly replaces the adjacent pair whose rule has the lowest rank by the
// merged symbol, until no rule applies. If several pairs have the lowest rank, the leftmost one is replaced first. The
// time is nearly linear in the word length.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Rule {
    uint64_t pair;  // left << 32 | right
    uint32_t rank;
    int32_t merged;
  };
  explicit MergeTable(size_t rules);  // `rules`: maximum number of rules that will be added
  // Later rules for the same pair are ignored. Rules with equal rank apply from left to right.
  void add(int32_t left, int32_t right, int32_t merged, uint32_t rank);
  // Returns the rule for a pair of symbols, or null if there is none.
  const Rule* find(int32_t left, int32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    for (size_t slot = place(pair);; slot = (slot + 1) & mask_) {
      if (rules_[slot].pair == pair) return &rules_[slot];
      if (rules_[slot].rank == kNone) return nullptr;
    }
  }
  // Applies the rules to `symbols` in place. Callers may use values below -1 for characters without a token, because no
  // rule applies to them.
  void merge(std::vector<int32_t>& symbols) const;

 private:
  size_t place(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15ull) >> shift_; }
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  std::vector<Rule> rules_;  // hash table with open addressing
  size_t mask_ = 0;
  int shift_ = 0;
};

// A unique number for each tokenizer. The thread-local caches use it to detect entries of a different tokenizer.
class CacheOwner {
 public:
  CacheOwner() : number_(next()) {}
  uint64_t number() const { return number_; }

 private:
  static uint64_t next() {
    static std::atomic<uint64_t> count{0};
    return ++count;
  }
  uint64_t number_;
};

// A direct-mapped cache of the ids of recent words. Each thread has a separate cache.
class WordCache {
 public:
  // Appends the ids of the word to `ids`. If the cache does not contain the word, calls `make`, which must append them.
  template <typename Make>
  void encode(const CacheOwner& owner, std::string_view word, std::vector<int32_t>& ids, Make&& make) {
    if (word.size() > kWord) return make();
    if (owner.number() != owner_) {
      entries_.assign(kEntries, Entry{});
      owner_ = owner.number();
    }
    Entry& entry = entries_[checksum(word) % kEntries];
    if (entry.length == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0) {
      ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t before = ids.size();
    make();
    const size_t made = ids.size() - before;
    if (made > kIds) return;
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(made);
    std::memcpy(entry.word, word.data(), word.size());
    for (size_t i = 0; i < made; ++i) entry.ids[i] = ids[before + i];
  }

 private:
  static constexpr size_t kWord = 30, kIds = 8, kEntries = 1 << 14;
  struct Entry {
    uint8_t length = 0, count = 0;
    char word[kWord];
    int32_t ids[kIds];
  };
  uint64_t owner_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace lazy
