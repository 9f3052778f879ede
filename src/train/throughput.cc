#include "train/throughput.h"

#include <algorithm>

#include "model/mixers/kinds.h"

namespace lazy::train {

double flops_per_token(const ModelConfig& config, int64_t sequence_length) {
  const auto count = count_parameters(config);
  const double multiplied = static_cast<double>(count.untied - config.vocab_size * config.hidden_size);
  const int64_t keys = config.window > 0 ? std::min(config.window, sequence_length) : sequence_length;
  // Query t of a sequence sees min(t, keys) keys: the mean over the sequence.
  const double seen = static_cast<double>(keys) - static_cast<double>(keys) * static_cast<double>(keys - 1) /
                                                      (2.0 * static_cast<double>(sequence_length));
  const int64_t mixing =
      config.all_attention() ? 0 : config.num_layers - static_cast<int64_t>(config.attention_layers.size());
  const bool both = mixing > 0 && mixer_kind(config).window;  // attention within the mixer
  const double attention_width =
      static_cast<double>((config.num_layers - (both ? 0 : mixing)) * config.num_heads * config.head_dim);
  const double state = static_cast<double>(mixing * config.mix.heads * config.mix.key_dim * config.mix.value_dim);
  return 6.0 * multiplied + 12.0 * attention_width * seen + 12.0 * state;
}

}  // namespace lazy::train
