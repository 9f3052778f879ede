#include "sinks/learned.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "model/checkpoint.h"
#include "model/config.h"

namespace lazy::sinks {
namespace {

std::vector<double> row_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kDouble).contiguous();
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

}  // namespace

report::LearnedParameters learned_parameters(const std::filesystem::path& directory) {
  report::LearnedParameters result;
  ModelConfig config = ModelConfig::from_directory(directory);
  result.tau_initial = config.offset_init;
  if (!config.has_offset() && config.distance_bias_window == 0) return result;
  const SafetensorsFile file = open_weights(directory);
  if (!has_weight(file, "lm_head.weight")) config.tie_embeddings = true;
  const auto names = match_weights(file, directory, config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.attn.", layer);
    if (config.has_offset()) result.tau.push_back(row_of(file.tensor(names.at(prefix + "softmax_offset"))));
    if (config.distance_bias_window > 0) {
      const at::Tensor table = file.tensor(names.at(prefix + "learnable_bias_diagonals"));
      result.distance_bias.emplace_back();
      for (int64_t head = 0; head < table.size(0); ++head) result.distance_bias.back().push_back(row_of(table[head]));
    }
  }
  return result;
}

}  // namespace lazy::sinks
