// The rotation frequencies of RoPE: powers of the base, and their scalings for contexts longer than the trained one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::ops {

struct RopeScaling {
  std::string type = "none";                     // "none", "linear", "llama3" or "yarn"
  double factor = 1;                             // extension of the context
  int64_t original_length = 0;                   // tokens of the original context; llama3 and yarn need it
  double low_frequency = 1, high_frequency = 4;  // llama3: rotations over the original context below which a pair is
                                                 // scaled by 1 / factor, and above which it is not scaled
  double beta_fast = 32, beta_slow = 1;          // yarn: the same bounds in reverse order
  bool truncate = true;                          // yarn: round the bounds to whole pairs (not in gpt-oss)
  double attention_factor = 0;  // cosines and sines are multiplied by it; 0: 0.1 ln(factor) + 1 for yarn, 1 otherwise
};

struct RopeFrequencies {
  std::vector<double> per_pair;  // radians a position, rotary_dim / 2 of them
  double attention_factor = 1;
};

// llama3 as in Llama 3.1's release, yarn as in Peng et al. 2023 (arXiv 2309.00071), both as
// transformers computes them.
RopeFrequencies rope_frequencies(double base, int64_t rotary_dim, const RopeScaling& scaling);

}  // namespace lazy::ops
