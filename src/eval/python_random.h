// Python's random.Random, number for number: what lm-evaluation-harness draws its examples and bootstrap samples by.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lazy::eval {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);  // random.Random(seed)
  double random();                       // [0, 1) with 53 bits
  uint64_t below(uint64_t n);            // the integer that choice, sample and shuffle draw; 1 <= n < 2^32
  // The positions that random.sample(range(n), k) gives; k <= n.
  std::vector<size_t> sample(size_t n, size_t k);

 private:
  static constexpr size_t kWords = 624;
  uint32_t word() { return next_ < kWords ? words_[next_++] : refilled(); }
  uint32_t refilled();
  // The Mersenne Twister's state, and what the generator hands out of it: whole blocks, which the compiler vectorizes.
  std::array<uint32_t, kWords> state_, words_;
  size_t next_ = kWords;
};

}  // namespace lazy::eval
