// The rotation frequencies of RoPE: powers of the base, and their scalings for contexts longer than the trained one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::ops {

struct RopeScaling {
  std::string type = "none";                     // "none", "linear", "llama3", "yarn" or "longrope"
  double factor = 1;                             // extension of the context; longrope: only for attention_factor
  int64_t original_length = 0;                   // tokens of the original context; not for linear
  double low_frequency = 1, high_frequency = 4;  // llama3: rotations over the original context below which a pair is
                                                 // scaled by 1 / factor, and above which it is not scaled
  double beta_fast = 32, beta_slow = 1;          // yarn: the same bounds in reverse order
  bool truncate = true;                          // yarn: round the bounds to whole pairs (not in gpt-oss)
  // Cosines and sines are multiplied by it. 0: 0.1 ln(factor) + 1 for yarn, sqrt(1 + ln(factor) / ln(original_length))
  // for longrope, both for a factor above 1; 1 otherwise.
  double attention_factor = 0;
  std::vector<double> pair_factors;  // longrope: the frequency of each pair is divided by its factor
};

struct RopeFrequencies {
  std::vector<double> per_pair;  // radians a position, rotary_dim / 2 of them
  double attention_factor = 1;
};

// llama3 as in Llama 3.1's release, yarn as in Peng et al. 2023 (arXiv 2309.00071), longrope as in Ding et al. 2024
// (arXiv 2402.13753), all as transformers computes them.
RopeFrequencies rope_frequencies(double base, int64_t rotary_dim, const RopeScaling& scaling);

}  // namespace lazy::ops
