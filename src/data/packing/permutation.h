// A shuffled order without an array: a keyed permutation of [0, size), computed at any place in constant time.
#pragma once
#include <array>
#include <cstdint>

namespace lazy {

// A Feistel network over the smallest power of two that holds `size`; places outside are walked on until one lies
// inside (Black and Rogaway 2002, "cycle walking"), less than twice on average. Equal keys give equal orders on every
// machine.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t place) const;  // place < size

 private:
  static constexpr int kRounds = 8;
  uint64_t scramble(uint64_t place) const;
  uint64_t size_;
  int low_bits_, high_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace lazy
