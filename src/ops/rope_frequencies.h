// The rotation frequencies of RoPE: powers of the base, and scaling methods for contexts longer than in training.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::ops {

struct RopeScaling {
  std::string type = "none";    // "none", "linear", "llama3", "yarn" or "longrope"
  double factor = 1;            // factor by which the context is extended; longrope uses it only in attention_factor
  int64_t original_length = 0;  // number of tokens of the original context; not used by linear
  // llama3: the frequency of a pair that completes fewer than low_frequency rotations over the original context is
  // divided by `factor`. The frequency of a pair with more than high_frequency rotations is unchanged. Frequencies
  // between these limits are interpolated.
  double low_frequency = 1, high_frequency = 4;
  double beta_fast = 32, beta_slow = 1;  // yarn: numbers of rotations, like high_frequency and low_frequency
  bool truncate = true;                  // yarn: round the pair indices of these limits (not in gpt-oss)
  // Cosines and sines are multiplied by attention_factor. 0 selects the default: 0.1 ln(factor) + 1 for yarn and
  // sqrt(1 + ln(factor) / ln(original_length)) for longrope, both only for a factor above 1; otherwise 1.
  double attention_factor = 0;
  std::vector<double> pair_factors;  // longrope: the frequency of each pair is divided by its factor
};

struct RopeFrequencies {
  std::vector<double> per_pair;  // radians per position, rotary_dim / 2 entries
  double attention_factor = 1;
};

// Returns the rotation frequencies. The scaling method llama3 follows the Llama 3.1 release, yarn is defined by Peng et
// al. 2023 (arXiv 2309.00071), and longrope by Ding et al. 2024 (arXiv 2402.13753). The results are equal to the
// implementation in the transformers library.
RopeFrequencies rope_frequencies(double base, int64_t rotary_dim, const RopeScaling& scaling);

}  // namespace lazy::ops
