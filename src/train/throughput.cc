#include "train/throughput.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/file.h"
#include "model/mixers/registry.h"

namespace lazy::train {

double flops_per_token(const ModelConfig& config, int64_t sequence_length) {
  const auto count = count_parameters(config);
  const double multiplied = static_cast<double>(count.untied - config.vocab_size * config.hidden_size);
  const int64_t keys =
      config.attention.window > 0 ? std::min(config.attention.window, sequence_length) : sequence_length;
  // Query t of a sequence attends to min(t, keys) keys. `seen` is the mean over the sequence.
  const double seen = static_cast<double>(keys) - static_cast<double>(keys) * static_cast<double>(keys - 1) /
                                                      (2.0 * static_cast<double>(sequence_length));
  const int64_t mixing =
      config.all_attention() ? 0 : config.num_layers - static_cast<int64_t>(config.mixer.attention_layers.size());
  const bool both = mixing > 0 && mixer_kind(config).window;  // whether mixer layers also contain attention
  const double attention_width = static_cast<double>((config.num_layers - (both ? 0 : mixing)) *
                                                     config.attention.num_heads * config.attention.head_dim);
  const double state = static_cast<double>(mixing * config.mixer.heads * config.mixer.key_dim * config.mixer.value_dim);
  return 6.0 * multiplied + 12.0 * attention_width * seen + 12.0 * state;
}

namespace {

using Json = nlohmann::json;

struct ThroughputMeasurement {
  std::string model, checkpointing;
  double tokens_per_second = 0;
  std::optional<double> mfu;  // absent if the peak FLOP/s of the device is unknown, as on a CPU
  int64_t batch = 0, seq_len = 0;
  int64_t parameters = 0;  // number of model parameters; 0: not given
  std::optional<int64_t> peak_memory;
};

ThroughputMeasurement read_one(const Json& json, const std::string& file) {
  const auto number = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    if (!json.is_object() || found == json.end() || !found->is_number() || !(found->get<double>() > 0)) {
      fail("plan", "{}: {}: expected a number above 0 from `lazy bench train --json`", file, key);
    }
    return found->get<double>();
  };
  ThroughputMeasurement m;
  m.tokens_per_second = number("tokens_per_second");
  m.batch = static_cast<int64_t>(number("batch"));
  m.seq_len = static_cast<int64_t>(number("seq_len"));
  if (json.contains("mfu")) m.mfu = number("mfu");
  if (m.mfu && *m.mfu > 1) fail("plan", "{}: mfu: expected a fraction of at most 1, found {}", file, *m.mfu);
  if (json.contains("parameters")) m.parameters = static_cast<int64_t>(number("parameters"));
  m.checkpointing = json.value("activation_checkpointing", "none");
  if (!json.contains("model") || !json.at("model").is_string())
    fail("plan", "{}: model: expected the name of a configuration", file);
  m.model = json.at("model").get<std::string>();
  if (json.contains("peak_memory_bytes")) m.peak_memory = static_cast<int64_t>(number("peak_memory_bytes"));
  return m;
}

std::vector<ThroughputMeasurement> read_all(const std::filesystem::path& path) {
  const Json json = Json::parse(read_file(path), nullptr, false);
  if (json.is_discarded()) fail("plan", "{}: expected JSON of `lazy bench train --json`", path.string());
  std::vector<ThroughputMeasurement> out;
  if (json.is_array()) {
    for (const Json& item : json) out.push_back(read_one(item, path.string()));
  } else {
    out.push_back(read_one(json, path.string()));
  }
  if (out.empty()) fail("plan", "{}: contains no measurement", path.string());
  return out;
}

// Distance between a measurement and the configuration, for choosing the nearest measurement. A different model has the
// largest weight, then a different activation checkpointing mode, then the sequence length and the batch size.
double distance(const TrainConfig& config, const ThroughputMeasurement& m) {
  const auto ratio = [](int64_t a, int64_t b) {
    return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
  };
  const bool same =
      m.model == config.name && (m.parameters == 0 || m.parameters == count_parameters(config.model).total);
  return (same ? 0 : 1e6) + (m.checkpointing == config.activation_checkpointing ? 0 : 1e5) +
         1e3 * ratio(m.seq_len, config.seq_len) + ratio(m.batch, config.batch_size);
}

}  // namespace

std::optional<Speed> expected_speed(const TrainConfig& config, const SpeedSource& source) {
  const double flops = flops_per_token(config.model, config.seq_len);
  if (source.measured) {
    ThroughputMeasurement best;
    for (const ThroughputMeasurement& m : read_all(*source.measured)) {
      if (best.batch == 0 || distance(config, m) < distance(config, best)) best = m;
    }
    const std::string where =
        fmt::format("{}: {} at {} x {}", source.measured->string(), best.model, best.batch, best.seq_len);
    const double peak = source.peak_tflops * 1e12;
    if (distance(config, best) == 0) {
      return Speed{best.tokens_per_second, best.mfu.value_or(best.tokens_per_second * flops / peak),
                   "measured in " + where, best.peak_memory};
    }
    if (!best.mfu) {
      fail("plan", "{}: expected a measurement with mfu or one of {} with batch size {} and sequence length {}", where,
           config.name, config.batch_size, config.seq_len);
    }
    return Speed{*best.mfu * peak / flops,
                 *best.mfu,
                 fmt::format("the utilization measured in {}, scaled to the FLOPs of this model", where),
                 {}};
  }
  if (!source.mfu) return std::nullopt;
  return Speed{*source.mfu * source.peak_tflops * 1e12 / flops, *source.mfu, "the utilization given by --mfu", {}};
}

}  // namespace lazy::train
