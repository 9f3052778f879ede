#include "measure/kinds.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/known_names.h"
#include "core/text.h"
#include "measure/model_measures.h"
#include "model/config.h"

namespace lazy::measure {
namespace {

Json model_kind(const ExperimentInputs& run) {
  const Json& s = run.settings;
  ModelInputs inputs{s.at("model").get<std::string>(),
                     s.at("corpus").get<std::string>(),
                     s.value("data", std::string()),
                     {},
                     run.device,
                     run.progress};
  const auto length = s.at("length").get<int64_t>();
  inputs.sequences.length = length > 0 ? length : ModelConfig::from_directory(inputs.model).max_length;
  inputs.sequences.bos_per_sequence = s.at("bos_per_sequence");
  inputs.sequences.bos_per_document = s.at("bos_per_document");
  inputs.sequences.eos_per_document = s.at("eos_per_document");
  const auto parts = s.at("parts").get<std::vector<std::string>>();
  for (const std::string& part : parts) {
    if (std::find(kModelParts.begin(), kModelParts.end(), part) == kModelParts.end())
      fail("measure", "model: parts: expected parts of a record ({}), found '{}'{}", fmt::join(kModelParts, ", "), part,
           did_you_mean(part, kModelParts));
    if (inputs.data.empty() && (part == "wikitext" || part == "lambada"))
      fail("measure", "model: the part {} needs --data DIR with the benchmark's file, found none", part);
  }
  MeasureSizes z;
  z.dtype = s.at("dtype");
  z.heldout_tokens = s.at("heldout_tokens");
  z.sink_lengths = s.at("sink_lengths").get<std::vector<int64_t>>();
  z.sink_tokens = s.at("sink_tokens");
  z.lengths = s.at("lengths").get<std::vector<int64_t>>();
  z.length_blocks = s.at("length_blocks");
  z.other_rope_base = s.at("other_rope_base");
  z.probe_samples = s.at("probe_samples");
  z.collapse_samples = s.at("collapse_samples");
  if (z.sink_lengths.empty() || z.lengths.empty())
    fail("measure", "model: sink_lengths and lengths: expected at least one length each, found none");
  const int64_t last = z.lengths.back();
  for (const int64_t at : z.lengths) {
    if (at < 2 || last % at != 0)
      fail("measure", "model: lengths: expected divisors of the last length ({}), found {}", last, at);
  }
  return measure_model(inputs, z, parts);
}

Json model_defaults() {
  const MeasureSizes z;
  return {{"parts", kRecordParts},
          {"length", 0},
          {"bos_per_sequence", true},
          {"bos_per_document", false},
          {"eos_per_document", true},
          {"dtype", z.dtype},
          {"heldout_tokens", z.heldout_tokens},
          {"sink_lengths", z.sink_lengths},
          {"sink_tokens", z.sink_tokens},
          {"lengths", z.lengths},
          {"length_blocks", z.length_blocks},
          {"other_rope_base", z.other_rope_base},
          {"probe_samples", z.probe_samples},
          {"collapse_samples", z.collapse_samples}};
}

// Parses a text to a JSON value of the same type as `like`. Returns null if the text does not represent such a value.
Json value_like(const std::string& text, const Json& like) {
  if (like.is_string()) return text;
  if (like.is_array()) {
    Json out = Json::array();
    for (const std::string& item : split(text, ',')) {
      out.push_back(value_like(item, like.at(0)));
      if (out.back().is_null()) return nullptr;
    }
    return out;
  }
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool fits = like.is_boolean()          ? value.is_boolean()
                    : like.is_number_integer() ? value.is_number_integer() && value.get<int64_t>() >= 0
                                               : value.is_number();
  return fits ? value : Json();
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"model", "losses, attention sinks, hidden states and learned parameters, as in a record of docs/results/records",
       "corpus", model_defaults(), model_kind},
      {"mask",
       "attention to the first position and to BOS at one fixed position",
       "text",
       {{"position", 1}, {"texts", 64}, {"length", 128}},
       mask_experiment},
      {"repetition",
       "attention to the first position on natural text and on one repeated token",
       "text",
       {{"texts", 32}, {"length", 64}},
       repetition_experiment},
      {"streaming",
       "loss with all keys, with a window of keys, and with the window and the first four keys",
       "text",
       {{"texts", 8}, {"times", 6}, {"window", 1024}},
       streaming_experiment},
      {"bias_range",
       "loss of each text with the distance bias set to zero beyond each distance",
       "text",
       {{"texts", 64}, {"length", 512}},
       bias_range_experiment},
      {"vectors", "norms and variances of queries, keys, values and hidden states for the sentence of the paper", "",
       Json::object(), vectors_experiment},
      {"spread",
       "variance of hidden states and values by position",
       "text",
       {{"texts", 32}, {"length", 64}},
       spread_experiment},
      {"outliers",
       "kurtosis and largest entries of the activations by layer",
       "text",
       {{"texts", 16}, {"length", 512}},
       outliers_experiment},
      {"quantization",
       "loss of each text after simulated quantization",
       "text",
       {{"texts", 32}, {"length", 512}, {"formats", {"w8a8", "w8a8:tensor", "w4a4", "kv8", "kv4", "kv4:channel"}}},
       quantization_experiment},
      {"cache",
       "loss through small KV caches, and bytes of V that a decode step reads",
       "text",
       {{"texts", 8},
        {"length", 1024},
        {"counted_from", 512},
        {"read_texts", 2},
        {"decoded", 8},
        {"read_at", {64, 128, 256, 512, 1024}},
        {"caches", {"streaming:4+60", "streaming:4+124", "streaming:4+252", "heaviest:64+64"}}},
       cache_experiment},
      {"model_latency",
       "time of prefill and decode with and without the second pass and the sparsity of Elastic-Softmax",
       "corpus",
       {{"lengths", {512, 2048, 8192}}, {"texts", 2}, {"rounds", 5}, {"decoded", 16}, {"batch", 1}, {"dtype", "fp32"}},
       model_latency_experiment},
      {"speed",
       "time of a training step and of decoding, alternating with the models of --baseline",
       "corpus",
       {{"lengths", {512, 2048}},
        {"texts", 2},
        {"rounds", 9},
        {"decoded", 16},
        {"batch", 1},
        {"train_tokens", 1024},
        {"dtype", "fp32"}},
       speed_experiment}};
  return all;
}

const Kind& find_kind(const std::string& name) {
  for (const Kind& kind : kinds()) {
    if (kind.name == name) return kind;
  }
  fail("measure", "expected a kind of measurement that `lazy measure --list` names, found '{}'{}", name,
       did_you_mean(name, names_of(kinds())));
}

Json settings_of(const Kind& kind, const std::vector<std::string>& assignments) {
  Json settings = kind.defaults;
  std::vector<std::string> keys;
  for (const auto& [key, value] : settings.items()) keys.push_back(key);
  for (const std::string& assignment : assignments) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos) fail("measure", "--set: expected key=value, found '{}'", assignment);
    const std::string key = assignment.substr(0, equals), text = assignment.substr(equals + 1);
    if (!settings.contains(key))
      fail("measure", "--set {}: expected a setting of {} ({}), found '{}'{}", assignment, kind.name,
           fmt::join(keys, ", "), key, did_you_mean(key, keys));
    const Json value = value_like(text, kind.defaults.at(key));
    if (value.is_null())
      fail("measure", "--set {}: expected a value such as {}, found '{}'", key, kind.defaults.at(key).dump(), text);
    settings[key] = value;
  }
  return settings;
}

}  // namespace lazy::measure
