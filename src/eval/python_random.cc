#include "eval/python_random.h"

#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_set>

namespace lazy::eval {
namespace {

uint32_t mixed(uint32_t x) { return x ^ (x >> 30); }

uint32_t twist(uint32_t here, uint32_t after) {
  return (((here & 0x80000000u) | (after & 0x7fffffffu)) >> 1) ^ ((0u - (after & 1u)) & 0x9908b0dfu);
}

}  // namespace

// The state that "init by array" of the Mersenne Twister's authors makes of the seed's 32-bit words.
PythonRandom::PythonRandom(uint64_t seed) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const size_t length = key[1] ? 2 : 1;
  state_[0] = 19650218u;
  for (size_t i = 1; i < kWords; ++i) state_[i] = 1812433253u * mixed(state_[i - 1]) + static_cast<uint32_t>(i);
  size_t i = 1, j = 0;
  const auto step = [&](uint32_t factor, uint32_t addend) {
    state_[i] = (state_[i] ^ (mixed(state_[i - 1]) * factor)) + addend;
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (size_t k = 0; k < kWords; ++k) {
    step(1664525u, key[j] + static_cast<uint32_t>(j));
    if (++j >= length) j = 0;
  }
  for (size_t k = 0; k + 1 < kWords; ++k) step(1566083941u, 0u - static_cast<uint32_t>(i));
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::refilled() {
  constexpr size_t kAhead = 397, kBehind = kWords - kAhead;
  for (size_t i = 0; i < kBehind; ++i) state_[i] = state_[i + kAhead] ^ twist(state_[i], state_[i + 1]);
  for (size_t i = kBehind; i + 1 < kWords; ++i) state_[i] = state_[i - kBehind] ^ twist(state_[i], state_[i + 1]);
  state_[kWords - 1] = state_[kAhead - 1] ^ twist(state_[kWords - 1], state_[0]);
  for (size_t i = 0; i < kWords; ++i) {
    uint32_t y = state_[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    words_[i] = y ^ (y >> 18);
  }
  next_ = 1;
  return words_[0];
}

double PythonRandom::random() {
  const uint32_t high = word() >> 5, low = word() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

uint64_t PythonRandom::below(uint64_t n) {
  const int bits = std::bit_width(n);
  uint64_t drawn;
  do drawn = word() >> (32 - bits);
  while (drawn >= n);
  return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t n, size_t k) {
  std::vector<size_t> chosen;
  // Python keeps a set of what was drawn where that is smaller than a list of everything; the two draw differently.
  double set_size = 21;
  if (k > 5) set_size += std::pow(4.0, std::ceil(std::log(static_cast<double>(k) * 3) / std::log(4.0)));
  if (static_cast<double>(n) <= set_size) {
    std::vector<size_t> pool(n);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < k; ++i) {
      const size_t j = below(n - i);
      chosen.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
  } else {
    std::unordered_set<size_t> selected;
    for (size_t i = 0; i < k; ++i) {
      size_t j = below(n);
      while (!selected.insert(j).second) j = below(n);
      chosen.push_back(j);
    }
  }
  return chosen;
}

}  // namespace lazy::eval
