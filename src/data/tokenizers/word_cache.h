// Text repeats its words: what the merging made of recent ones, a cache for each thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace lazy {

// Tells tokenizers apart that take turns on one thread.
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

// Direct-mapped: a word that hashes to another's place takes it.
class WordCache {
 public:
  // Appends the word's ids; `make` appends them when they are not known yet.
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
