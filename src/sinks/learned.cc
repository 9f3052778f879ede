#include "sinks/learned.h"

#include <ATen/ATen.h>

#include "model/checkpoint.h"
#include "model/checkpoint_names.h"
#include "model/config.h"
#include "model/families/family.h"

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
  const bool alibi = config.positions == "alibi", biased = config.distance_bias_window > 0;
  if ((!config.has_offset() && !biased && !alibi) || !config.attends() || family_of(config)) return result;
  const std::unique_ptr<WeightsFile> file = open_weights(directory);
  if (!has_weight(*file, "lm_head.weight")) config.tie_embeddings = true;
  const auto stored = match_weights(*file, directory, config);
  const CheckpointNames names(config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool attends = config.mixer_of(layer) == "attention";
    const auto tensor = [&](const std::string& name) { return file->tensor(stored.at(names.layer(layer) + name)); };
    const auto row = [&](const std::string& name) { return attends ? row_of(tensor(name)) : std::vector<double>(); };
    if (config.has_offset()) result.tau.push_back(row(names.offset));
    if (alibi) result.alibi_slopes.push_back(row(names.slopes));
    if (!biased) continue;
    result.distance_bias.emplace_back();
    if (!attends) continue;
    const at::Tensor table = tensor(names.distance_bias);
    for (int64_t head = 0; head < table.size(0); ++head) result.distance_bias.back().push_back(row_of(table[head]));
  }
  return result;
}

}  // namespace lazy::sinks
