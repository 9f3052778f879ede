#include "data/packing/permutation.h"

#include <bit>

#include "core/random.h"

namespace lazy {

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size) {
  const int bits = size > 1 ? std::bit_width(size - 1) : 0;
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  Random random(key);
  for (uint64_t& round : keys_) round = random.next();
}

uint64_t Permutation::scramble(uint64_t place) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t low = place & low_mask, high = place >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    high ^= Random(keys_[round] ^ low).next() & high_mask;
    low ^= Random(keys_[round + 1] ^ high).next() & low_mask;
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t place) const {
  do place = scramble(place);
  while (place >= size_);
  return place;
}

}  // namespace lazy
