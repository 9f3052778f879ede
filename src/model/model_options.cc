#include "model/model_options.h"

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/text.h"
#include "model/quantization.h"

namespace lazy {
namespace {

// Parses the value of --positions. "yarn:4", for example, extends the training length by a factor of 4.
ops::RopeScaling parse_positions(const std::string& text, const ModelConfig& config) {
  ops::RopeScaling scaling;
  if (text == "none") return scaling;
  const size_t colon = text.find(':');
  const std::string type = text.substr(0, colon), number = colon == std::string::npos ? "" : text.substr(colon + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), scaling.factor);
  const bool known = type == "yarn" || type == "linear" || type == "dynamic";
  if (!known || error != std::errc() || end != number.data() + number.size() || !(scaling.factor >= 1) ||
      !std::isfinite(scaling.factor)) {
    fail("model",
         "--positions: expected yarn:FACTOR, linear:FACTOR or dynamic:FACTOR with a factor of at least 1, or none, "
         "found '{}'",
         to_valid_utf8(text));
  }
  scaling.type = type;
  // If the model's RoPE is already scaled, the training length is the original length before scaling.
  const int64_t original = config.positions.rope_scaling.original_length;
  if (type != "linear") scaling.original_length = original > 0 ? original : config.max_length;
  return scaling;
}

}  // namespace

ModelConfig ModelOptions::apply(ModelConfig config) const {
  if (rope_base != 0) {
    if (!std::isfinite(rope_base) || rope_base <= 1)
      fail("model", "--rope-base: expected more than 1, found {}", rope_base);
    if (!config.positions.layer_bases.empty())
      fail("model", "--rope-base: not supported for this model, whose layers have separate RoPE bases");
    config.positions.rope_base = rope_base;
  }
  if (!positions.empty()) config.positions.rope_scaling = parse_positions(positions, config);
  return config;
}

std::optional<StreamingCache> ModelOptions::streaming() const {
  if (cache.empty()) return std::nullopt;
  return StreamingCache::parse(cache, "--cache");
}

std::string ModelOptions::command_line() const {
  std::string text;
  if (!positions.empty()) text += " --positions " + positions;
  if (rope_base != 0) text += fmt::format(" --rope-base {}", rope_base);
  if (!cache.empty()) text += " --cache " + cache;
  if (!weights.empty()) text += " --weights " + weights;
  if (!quantize.empty()) text += " --quantize " + quantize;
  return text;
}

LanguageModel open_model(const std::filesystem::path& directory, const ModelOptions& options) {
  if (!options.weights.empty() && options.weights != "int8")
    fail("model", "--weights: expected int8, found '{}'", to_valid_utf8(options.weights));
  const Quantization quantization =
      options.quantize.empty() ? Quantization() : Quantization::parse(options.quantize, "--quantize");
  if (quantization.weights.used() && !options.weights.empty())
    fail("model", "--quantize {} cannot be combined with --weights {}", options.quantize, options.weights);
  LanguageModel model = LanguageModel::load(directory, options.apply(ModelConfig::from_directory(directory)));
  if (!options.weights.empty()) model.set_int8();
  if (quantization.used()) model.quantize(quantization);
  return model;
}

}  // namespace lazy
