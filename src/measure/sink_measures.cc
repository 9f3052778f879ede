// Measures attention sinks, hidden states, the attention weights of every key, and learned parameters.
#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/statistics.h"
#include "core/stop.h"
#include "measure/model_measures.h"
#include "model/config.h"
#include "model/forward_options.h"
#include "sinks/attention_maps.h"
#include "sinks/measures.h"
#include "sinks/probe_measures.h"
#include "sinks/residual_statistics.h"
#include "sinks/text_source.h"
#include "sinks/uniform.h"

namespace lazy::measure {

namespace {

// Maximum number of tokens per forward pass. kPassCuda and kPassCpu: passes that compute attention statistics on a GPU
// and on a CPU. kProbePass: passes that compute the attention weights of every key.
constexpr int64_t kPassCuda = 65536, kPassCpu = 4096, kProbePass = 4096;
// Number of keys at the beginning of a text. The result "next_keys" is the sum of the weights of keys 2 to
// kLeavingKeys, to which weight that leaves the first key may move.
constexpr int64_t kLeavingKeys = 10;
constexpr size_t kCollapseTexts = 16;  // maximum number of texts of collapse_by_length
constexpr int64_t kListedKeys = 16;    // number of keys whose mean weight is recorded

using Samples = std::vector<std::vector<int64_t>>;

// Calls use(ids) for batches of samples. All samples have equal length.
template <typename Use>
void over_batches(LanguageModel& model, const Samples& samples, int64_t pass_tokens, const Use& use) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(samples.at(0).size());
  const auto batch = static_cast<size_t>(std::max<int64_t>(1, pass_tokens / length));
  for (size_t begin = 0; begin < samples.size(); begin += batch) {
    end_if_stopped("measure");
    const size_t count = std::min(batch, samples.size() - begin);
    const at::Tensor ids = at::empty({static_cast<int64_t>(count), length}, at::kLong);
    for (size_t i = 0; i < count; ++i) {
      std::copy(samples[begin + i].begin(), samples[begin + i].end(),
                ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(i) * length);
    }
    use(ids.to(model.device()));
  }
}

// Converts a tensor (rows, columns) to nested lists of float64 numbers.
std::vector<std::vector<double>> nested_rows(const at::Tensor& tensor) {
  const at::Tensor t = tensor.to(at::kCPU, at::kDouble).contiguous();
  std::vector<std::vector<double>> out;
  for (int64_t i = 0; i < t.size(0); ++i) {
    const double* row = t.const_data_ptr<double>() + i * t.size(1);
    out.emplace_back(row, row + t.size(1));
  }
  return out;
}

std::vector<double> values_of(const at::Tensor& tensor) { return nested_rows(tensor.reshape({1, -1})).front(); }

Json part_json(const std::vector<sinks::ResidualStatistics::PositionStatistics>& places,
               sinks::ResidualStatistics::ResidualMoments sinks::ResidualStatistics::PositionStatistics::*part) {
  std::vector<double> kurtosis, rms, largest;
  for (const auto& place : places) {
    kurtosis.push_back((place.*part).kurtosis);
    rms.push_back((place.*part).rms);
    largest.push_back((place.*part).largest);
  }
  return {{"kurtosis", rounded(kurtosis)}, {"rms", rounded(rms)}, {"largest", rounded(largest)}};
}

Json collapse_json(const sinks::Collapse& collapse) {
  std::vector<double> cosine, rank;
  for (const auto& place : collapse.result()) {
    double c = 0, r = 0;
    for (const sinks::HiddenSimilarity& sample : place) c += sample.cosine, r += sample.effective_rank;
    cosine.push_back(c / static_cast<double>(place.size()));
    rank.push_back(r / static_cast<double>(place.size()));
  }
  return {
      {"samples", collapse.result().front().size()}, {"cosine", rounded(cosine)}, {"effective_rank", rounded(rank)}};
}

// Converts the weights of the keys to JSON. alpha_k, the mean weight on key k, is a mean over only those queries that
// see key k. In the record, the weight of a key is a mean over all queries, so alpha_k is multiplied by the fraction of
// queries that see key k.
Json keys_json(const sinks::WeightMeasures::Result& weights) {
  const int64_t length = weights.alpha.size(2), last = std::min(kLeavingKeys, length);
  const at::Tensor share = at::arange(length, 0, -1, weights.alpha.options()) / static_cast<double>(length),
                   weight = weights.alpha * share;  // (layers, heads, keys)
  const at::Tensor next = weight.slice(2, 1, last).sum(-1);
  return {{"samples", weights.samples},
          {"mean_weight", rounded(values_of(weight.mean(at::IntArrayRef({0, 1})).slice(0, 0, kListedKeys)))},
          {"first_key", rounded(nested_rows(weight.select(2, 0)))},
          {"next_keys", rounded(nested_rows(next))},
          {"next_keys_are", {2, last}},
          {"entropy", rounded(nested_rows(weights.entropy))}};
}

// Returns ranges [first, last] of distances, over which a bias curve is averaged. A range that begins at `first` has
// max(1, first / 4 - 2) distances, so that all ranges up to distance 15 have one distance.
std::vector<std::pair<int64_t, int64_t>> distance_ranges(int64_t window) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t first = 0; first < window;) {
    const int64_t last = std::min(window, first + std::max<int64_t>(1, first / 4 - 2)) - 1;
    out.emplace_back(first, last);
    first = last + 1;
  }
  return out;
}

}  // namespace

Json sink_measures_of(LanguageModel& model, const Samples& samples) {
  const auto windows = sinks::layer_windows(model.config());
  sinks::MeasureSum sums(sinks::segments_of(model.config()));
  sinks::SinkRate rate;
  sinks::UniformRows uniform_rows(model);
  ForwardOptions options;
  options.return_stats = true;
  over_batches(model, samples, model.device().is_cuda() ? kPassCuda : kPassCpu, [&](const at::Tensor& ids) {
    const auto stats = model.forward(ids, options).stats;
    sums.add(stats, windows);
    rate.add(stats);
    uniform_rows.add(stats);
  });
  const sinks::Measures m = sums.result();
  const double ratio = sinks::mean(m.sink_ratio), exact = sinks::mean(uniform_rows.result()),
               uniform = uniform_rows.stated();
  return {{"samples", samples.size()},
          {"sink_ratio", rounded(ratio)},
          {"uniform", rounded(uniform)},
          {"excess", rounded(ratio - uniform)},
          {"uniform_at_offsets", rounded(exact)},
          {"excess_at_offsets", rounded(ratio - exact)},
          {"sink_1", rounded(sinks::mean(rate.result()))},
          {"density", rounded(sinks::mean(m.density))},
          {"released_mass", rounded(sinks::mean(m.released_mass))},
          {"alive_fraction", rounded(sinks::mean(m.alive_fraction))},
          {"by_head",
           {{"sink_ratio", rounded(m.sink_ratio)},
            {"sink_1", rounded(rate.result())},
            {"released_mass", rounded(m.released_mass)},
            {"alive_fraction", rounded(m.alive_fraction)}}}};
}

Json sink_measures(LanguageModel& model, const std::vector<int32_t>& ids, std::optional<int32_t> bos,
                   const std::vector<int64_t>& lengths, int64_t tokens) {
  Json out = Json::object();
  for (const int64_t length : lengths) {
    for (const bool with : {true, false}) {
      if (with && !bos) continue;
      const Samples samples = sinks::spread_samples(ids, length, std::max<int64_t>(1, tokens / length),
                                                    with ? bos : std::optional<int32_t>());
      if (samples.empty())
        fail("measure", "the validation split: expected at least {} tokens, found {}", length, ids.size());
      out[std::to_string(length)][with ? "bos" : "no_bos"] = sink_measures_of(model, samples);
    }
  }
  return out;
}

Json probe_measures(LanguageModel& model, const Samples& samples, int64_t collapse_samples) {
  const int64_t layers = model.config().num_layers;
  sinks::WeightMeasures weights(model);
  sinks::Collapse collapse(layers, static_cast<size_t>(collapse_samples));
  sinks::ResidualStatistics residual(layers);
  ActivationHooks hooks;
  weights.attach(hooks);
  if (collapse_samples > 0) collapse.attach(hooks);
  residual.attach(hooks);
  ForwardOptions options;
  options.activation_hooks = &hooks;
  over_batches(model, samples, kProbePass, [&](const at::Tensor& ids) { model.forward(ids, options); });
  const auto places = residual.result();
  return {{"places", "before each layer, after the last; collapse: also after the last norm"},
          {"collapse", collapse_samples > 0 ? collapse_json(collapse) : Json()},
          {"residual",
           {{"first_position", part_json(places, &sinks::ResidualStatistics::PositionStatistics::first)},
            {"other_positions", part_json(places, &sinks::ResidualStatistics::PositionStatistics::others)}}},
          {"keys", keys_json(weights.result())}};
}

Json collapse_by_length(LanguageModel& model, const Stretches& stretches, const std::vector<int64_t>& lengths,
                        int32_t bos) {
  const at::NoGradGuard no_grad;
  Json out = Json::object();
  for (const int64_t length : lengths) {
    double cosine = 0, rank = 0;
    const size_t texts = std::min(kCollapseTexts, stretches.size());
    for (size_t n = 0; n < texts; ++n) {
      end_if_stopped("measure");
      std::vector<int64_t> text(stretches[n].begin(), stretches[n].begin() + length);
      text.front() = bos;
      const auto hidden = model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(model.device())).hidden;
      const sinks::HiddenSimilarity found = sinks::hidden_similarity(hidden[0]);
      cosine += found.cosine / static_cast<double>(texts);
      rank += found.effective_rank / static_cast<double>(texts);
    }
    out[std::to_string(length)] = {{"cosine", rounded(cosine)}, {"effective_rank", rounded(rank)}};
  }
  return out;
}

Json learned_measures(const std::filesystem::path& model) {
  const sinks::LearnedParameters learned = sinks::learned_parameters(model);
  Json out = Json::object();
  if (!learned.tau.empty()) out = {{"tau_initial", learned.tau_initial}, {"tau", rounded(learned.tau)}};
  if (!learned.alibi_slopes.empty()) out["alibi_slopes"] = rounded(learned.alibi_slopes);
  if (learned.distance_bias.empty()) return out;
  const auto window = static_cast<int64_t>(learned.distance_bias.at(0).at(0).size());
  const bool covers = window >= ModelConfig::from_directory(model).max_length;
  const auto ranges = distance_ranges(window);
  Json curves = Json::array(), gauges = Json::array(), bounds = Json::array();
  for (const auto& [first, last] : ranges) bounds.push_back({first, last});
  for (const auto& layer : learned.distance_bias) {
    Json heads = Json::array(), gauge_of_heads = Json::array();
    for (const std::vector<double>& curve : layer) {
      const double gauge = covers ? mean_of(curve) : 0;
      std::vector<double> kept;
      for (const auto& [first, last] : ranges) {
        double total = 0;
        for (int64_t d = first; d <= last; ++d) total += curve[static_cast<size_t>(d)];
        kept.push_back(total / static_cast<double>(last - first + 1) - gauge);
      }
      heads.push_back(rounded(kept));
      gauge_of_heads.push_back(rounded(gauge));
    }
    curves.push_back(std::move(heads));
    gauges.push_back(std::move(gauge_of_heads));
  }
  out["distance_bias"] = {{"window", window},
                          {"gauge_rule", covers ? "the mean over the window is subtracted"
                                                : "nothing is subtracted: keys beyond the window have bias 0"},
                          {"gauge", gauges},
                          {"distances", bounds},
                          {"bias", curves}};
  return out;
}

}  // namespace lazy::measure
