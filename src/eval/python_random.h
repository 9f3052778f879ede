// Python's random.Random, number for number: what lm-evaluation-harness draws its few-shot examples and bootstrap samples
// by.
#pragma once
#include <cstdint>
#include <random>
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
  std::mt19937 engine_;
};

}  // namespace lazy::eval
