#include "measure/model_measures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/clock.h"
#include "core/error.h"
#include "model/config.h"
#include "model/device.h"
#include "sinks/post_hoc.h"
#include "sinks/text_source.h"

namespace lazy::measure {

namespace {

LanguageModel load_on(const ModelInputs& inputs, const MeasureSizes& sizes, double rope_base = 0) {
  ModelConfig config = ModelConfig::from_directory(inputs.model);
  if (rope_base > 0) config.positions.rope_base = rope_base;
  LanguageModel model = LanguageModel::load(inputs.model, config);
  if (inputs.device == "cuda") model.to(at::Device(at::kCUDA, 0));
  if (resolve_dtype(sizes.dtype, inputs.device) == "bf16") model.set_compute_dtype(at::kBFloat16);
  return model;
}

// Returns the tokens of the validation split on which attention sinks are measured, without document separators.
std::vector<int32_t> sink_text(const Tokenizer& tokenizer, const ModelInputs& inputs) {
  return sinks::corpus_source(tokenizer, inputs.corpus.string(), "validation").ids;
}

std::vector<std::vector<int64_t>> probe_samples(const LanguageModel& model, const std::vector<int32_t>& ids,
                                                std::optional<int32_t> bos, int64_t count) {
  auto samples = sinks::spread_samples(ids, model.config().max_length, count, bos);
  if (samples.empty())
    fail("measure", "validation split: expected at least {} tokens, found {}", model.config().max_length, ids.size());
  return samples;
}

}  // namespace

Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

Json rounded(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double value : values) out.push_back(rounded(value));
  return out;
}

Json rounded(const std::vector<std::vector<double>>& values) {
  Json out = Json::array();
  for (const auto& row : values) out.push_back(rounded(row));
  return out;
}

const std::vector<std::string> kRecordParts{"heldout",     "wikitext", "lambada",         "sinks",   "lengths",
                                            "activations", "learned",  "other_rope_base", "post_hoc"};
const std::vector<std::string> kModelParts = [] {
  std::vector<std::string> parts = kRecordParts;
  parts.push_back("collapse_by_length");
  return parts;
}();

Json measure_model(const ModelInputs& inputs, const MeasureSizes& sizes, const std::vector<std::string>& parts) {
  const auto wanted = [&parts](const char* part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  const auto tokenizer = load_tokenizer(inputs.model.string());
  const int32_t bos = eval::require_bos(*tokenizer);
  const std::optional<int32_t> trained_bos = inputs.sequences.bos_per_sequence ? std::optional(bos) : std::nullopt;
  LanguageModel model = load_on(inputs, sizes);
  const ModelConfig config = model.config();
  const bool post_hoc = wanted("post_hoc") && config.attention.normalizer == Normalizer::softmax;
  std::vector<int32_t> text;
  if (wanted("sinks") || wanted("activations") || post_hoc) text = sink_text(*tokenizer, inputs);
  std::vector<std::vector<int64_t>> probed;
  if (wanted("activations") || post_hoc) probed = probe_samples(model, text, trained_bos, sizes.probe_samples);
  Stretches stretches;
  if (wanted("lengths") || wanted("other_rope_base") || wanted("collapse_by_length")) {
    stretches = heldout_stretches(inputs.corpus, inputs.sequences, sizes.lengths.back(), sizes.length_blocks);
    if (stretches.empty())
      fail("measure", "{}: the validation split has no sequence of {} tokens", inputs.corpus.string(),
           sizes.lengths.back() + 1);
  }

  Json out = {{"dtype", model.compute_dtype() == at::kBFloat16 ? "bf16" : "fp32"}}, seconds = Json::object();
  const auto timed = [&seconds](const char* part, const auto& measure) -> Json {
    const auto begin = Clock::now();
    Json found = measure();
    seconds[part] = rounded(seconds_since(begin));
    return found;
  };
  if (wanted("heldout"))
    out["heldout"] = timed("heldout", [&] { return heldout_measures(model, inputs, sizes.heldout_tokens); });
  if (wanted("wikitext"))
    out["wikitext"] = timed("wikitext", [&] { return wikitext_measures(model, *tokenizer, inputs); });
  if (wanted("lambada")) out["lambada"] = timed("lambada", [&] { return lambada_measures(model, *tokenizer, inputs); });
  if (wanted("sinks")) {
    out["sinks"] =
        timed("sinks", [&] { return sink_measures(model, text, bos, sizes.sink_lengths, sizes.sink_tokens); });
  }
  if (wanted("lengths")) {
    out["lengths"]["bos_every_window"] =
        timed("lengths", [&] { return length_measures(model, stretches, sizes.lengths, bos, inputs.progress); });
    if (!trained_bos) {
      out["lengths"]["no_bos"] = timed(
          "lengths_no_bos", [&] { return length_measures(model, stretches, sizes.lengths, {}, inputs.progress); });
    }
  }
  if (wanted("activations"))
    out["activations"] = timed("activations", [&] { return probe_measures(model, probed, sizes.collapse_samples); });
  if (wanted("learned")) out["learned"] = learned_measures(inputs.model);
  if (wanted("other_rope_base") && config.rotates() && config.positions.layer_bases.empty() &&
      config.positions.rope_base != sizes.other_rope_base) {
    out["lengths"]["other_rope_base"] = timed("lengths_other_base", [&]() -> Json {
      LanguageModel other = load_on(inputs, sizes, sizes.other_rope_base);
      return {{"rope_base", sizes.other_rope_base},
              {"bos_every_window", length_measures(other, stretches, sizes.lengths, bos, inputs.progress)}};
    });
  }
  if (post_hoc) {
    out["post_hoc"] = timed("post_hoc", [&]() -> Json {
      LanguageModel control = sinks::with_post_hoc_offset(model);
      return {{"weights", "ReLU(p - 1 / i)"},
              {"heldout", heldout_measures(control, inputs, sizes.heldout_tokens)},
              {"sinks", sink_measures(control, text, bos, sizes.sink_lengths, sizes.sink_tokens)},
              {"activations", probe_measures(control, probed, /*collapse_samples=*/0)}};
    });
  }
  if (wanted("collapse_by_length")) {
    out["collapse_by_length"] =
        timed("collapse_by_length", [&] { return collapse_by_length(model, stretches, sizes.lengths, bos); });
  }
  out["seconds"] = seconds;
  return out;
}

}  // namespace lazy::measure
