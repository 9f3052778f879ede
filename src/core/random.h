// A random number generator whose results are equal on every machine and with every standard library. (std::shuffle
// gives different results with different libraries.)
#pragma once
#include <cstdint>
#include <span>
#include <utility>

namespace lazy {

// The generator SplitMix64 (Steele, Lea, Flood 2014). It has a 64-bit state, accepts any seed and passes the
// statistical tests of BigCrush.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Returns a uniform integer in [0, bound), without bias (Lemire 2019).
  uint64_t below(uint64_t bound) {
    while (true) {
      const unsigned __int128 product = static_cast<unsigned __int128>(next()) * bound;
      const auto low = static_cast<uint64_t>(product);
      if (low >= bound || low >= (0 - bound) % bound) return static_cast<uint64_t>(product >> 64);
    }
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // uniform in [0, 1)
  template <typename T>
  void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

}  // namespace lazy
