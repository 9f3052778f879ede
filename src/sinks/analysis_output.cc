// Formats the results of `lazy sinks` as JSON and as tables.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "core/percent.h"
#include "model/config.h"
#include "sinks/analysis.h"
#include "sinks/probe_measures.h"

namespace lazy::sinks {
using nlohmann::ordered_json;

namespace {

ordered_json rounded(const WeightRows& rows) {
  // Weights are rounded to six significant digits. This is more than any plot needs, and a weight above zero is never
  // rounded to zero.
  ordered_json out = ordered_json::array();
  for (const auto& row : rows) {
    ordered_json line = ordered_json::array();
    for (double w : row) line.push_back(std::stod(fmt::format("{:.6g}", w)));
    out.push_back(std::move(line));
  }
  return out;
}

double mean_over(const std::vector<HiddenSimilarity>& samples, double HiddenSimilarity::*value) {
  double sum = 0;
  for (const HiddenSimilarity& a : samples) sum += a.*value;
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

double row_mean(const std::vector<double>& row) { return mean(HeadMatrix{row}); }

}  // namespace

ordered_json to_json(const Analysis& s, const ModelConfig& config, const std::string& model, const std::string& text,
                     const AnalysisOptions& options, const std::string& command) {
  ordered_json out{{"format", "lazy-sinks"}, {"version", 2}};
  out["model"] = {{"path", model},
                  {"kind", config.kind()},
                  {"normalizer", name(config.attention.normalizer)},
                  {"num_layers", config.num_layers},
                  {"num_heads", config.attention.num_heads},
                  {"rope_base", config.positions.rope_base}};
  out["text"] = {{"path", text}, {"tokens", s.text_tokens}};
  out["settings"] = {
      {"length", s.length},           {"samples", s.samples},           {"bos", options.bos},
      {"sink_length", s.sink_length}, {"sink_samples", s.sink_samples}, {"threshold", options.threshold}};
  const std::pair<const char*, const HeadMatrix*> all[] = {{"sink_ratio", &s.measures.sink_ratio},
                                                           {"density", &s.measures.density},
                                                           {"released_mass", &s.measures.released_mass},
                                                           {"alive_fraction", &s.measures.alive_fraction},
                                                           {"sink_1_0.3", &s.sink_1}};
  for (const auto& [key, values] : all) {
    if (values->empty()) continue;  // Sink_1 was not measured
    out["overall"][key] = mean(*values);
    for (const auto& row : *values) out["per_layer"][key].push_back(row_mean(row));
    out["per_head"][key] = *values;
  }
  out["attention_maps"] = ordered_json::array();
  for (const HeadMap& map : s.maps) {
    out["attention_maps"].push_back(
        {{"layer", map.layer}, {"head", map.head}, {"tokens", map.tokens}, {"weights", rounded(map.weights)}});
  }
  if (const ordered_json further = to_json(*s.further); !further.empty()) out["further"] = further;
  out["command"] = command;
  return out;
}

std::string to_table(const Analysis& s) {
  const bool with_sink_1 = s.sink_samples > 0;
  std::string table = fmt::format("{:>7}  {:>8}  {:>10}  {:>13}  {:>14}{}\n", "layer", "density", "sink ratio",
                                  "released mass", "alive fraction", with_sink_1 ? "  Sink_1^0.3" : "");
  const auto line = [&](const std::string& name, const auto& value_of) {
    table +=
        fmt::format("{:>7}  {:>7}%  {:>9}%  {:>12}%  {:>13}%", name, percent_number(value_of(s.measures.density)),
                    percent_number(value_of(s.measures.sink_ratio)), percent_number(value_of(s.measures.released_mass)),
                    percent_number(value_of(s.measures.alive_fraction)));
    table += with_sink_1 ? fmt::format("  {:>9}%\n", percent_number(value_of(s.sink_1))) : "\n";
  };
  for (size_t l = 0; l < s.measures.density.size(); ++l)
    line(std::to_string(l), [l](const HeadMatrix& values) { return row_mean(values[l]); });
  line("all", [](const HeadMatrix& values) { return mean(values); });
  table += kMeasureLegend;
  table += fmt::format("{} of {} tokens", counted(s.samples, "sample"), s.length);
  if (with_sink_1) {
    table +=
        fmt::format("; Sink_1^0.3: share of heads with a mean weight above 0.3 on the first key, in {} of {} tokens",
                    counted(s.sink_samples, "sample"), s.sink_length);
  }
  table += "\n";
  return table + to_table(*s.further);
}

ordered_json nested(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor.item<double>();
  ordered_json out = ordered_json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) out.push_back(nested(tensor[i]));
  return out;
}

ordered_json to_json(const FurtherMeasures& further) {
  ordered_json out = ordered_json::object();
  if (further.weights) {
    const auto& w = *further.weights;
    out["weights"] = {{"alpha", nested(w.alpha.mean(1))},
                      {"sink_k", nested(w.sink.mean(at::IntArrayRef{0, 1}))},
                      {"sink_k_by_layer", nested(w.sink.mean(1))},
                      {"sink_1_by_head", nested(w.sink.select(2, 0))},
                      {"entropy", nested(w.entropy)},
                      {"threshold", w.threshold},
                      {"samples", w.samples}};
  }
  for (const auto& [place, values] : further.vectors) {
    out["vectors"][place] = {{"norm", nested(values.norm.mean(1))}, {"variance", nested(values.variance.mean(1))}};
  }
  for (const auto& place : further.massive) {
    ordered_json entry{{"largest", place.largest},
                       {"median", place.median},
                       {"per_sample", place.count},
                       {"position", place.position},
                       {"dimension", place.dimension}};
    entry["dimensions"] = ordered_json::object();
    for (const auto& [dimension, count] : place.by_dimension) entry["dimensions"][std::to_string(dimension)] = count;
    entry["positions"] = ordered_json::object();
    for (const auto& [position, count] : place.by_position) entry["positions"][std::to_string(position)] = count;
    out["massive"].push_back(entry);
  }
  for (const auto& samples : further.collapse) {
    ordered_json entry;
    for (const HiddenSimilarity& a : samples)
      entry["cosine"].push_back(a.cosine), entry["effective_rank"].push_back(a.effective_rank);
    out["collapse"].push_back(entry);
  }
  for (const auto& [place, layers] : further.outliers) {
    for (const Outliers::Layer& l : layers) {
      ordered_json entry{{"kurtosis", l.kurtosis},
                         {"kurtosis_first", l.kurtosis_first},
                         {"largest", l.largest},
                         {"median", l.median},
                         {"ratio", l.ratio},
                         {"spikes", l.spikes},
                         {"spikes_first", l.spikes_first},
                         {"dimension", l.dimension},
                         {"dimension_share", l.dimension_share}};
      entry["channels"] = ordered_json::object();
      for (const auto& [channel, times] : l.channels) entry["channels"][std::to_string(channel)] = times;
      out["outliers"][place].push_back(entry);
    }
  }
  if (further.decode) {
    const DecodeReads::Result& d = *further.decode;
    out["decode"] = {{"length", d.length},
                     {"queries", d.queries},
                     {"alive", d.alive},
                     {"alive_in_group", d.alive_in_group},
                     {"visible_bytes", d.visible_bytes},
                     {"alive_bytes", d.alive_bytes}};
  }
  return out;
}

std::string to_table(const FurtherMeasures& further) {
  std::string out;
  if (further.weights) {
    const auto& w = *further.weights;
    const at::Tensor sink = w.sink.mean(at::IntArrayRef{0, 1}), entropy = w.entropy.mean(1);
    out += fmt::format("Sink_k^{:g}, k = 1, 2, ...:", w.threshold);
    for (int64_t k = 0; k < std::min<int64_t>(8, sink.size(0)); ++k)
      out += fmt::format(" {}%", percent_number(sink[k].item<double>()));
    out += fmt::format("\nentropy by layer, nats:");
    for (int64_t l = 0; l < entropy.size(0); ++l) out += fmt::format(" {:.2f}", entropy[l].item<double>());
    out += "\n";
  }
  for (const auto& [place, values] : further.vectors) {
    const at::Tensor norm = values.norm.mean(1), variance = values.variance.mean(1);
    out += fmt::format("{}, first position / median of the other positions, by layer: norm", place);
    for (const at::Tensor* t : {&norm, &variance}) {
      for (int64_t l = 0; l < t->size(0); ++l)
        out += fmt::format(" {:.3g}", ((*t)[l][0] / (*t)[l].slice(0, 1).median()).item<double>());
      out += t == &norm ? "; variance" : "\n";
    }
  }
  for (size_t l = 0; l < further.massive.size(); ++l) {
    const auto& m = further.massive[l];
    if (m.count == 0) continue;
    out += fmt::format(
        "massive activations {}: {:.1f} per sample, largest {:.0f} (position {}, dimension {}), median {:.3g}\n",
        l + 1 < further.massive.size() ? fmt::format("before layer {}", l) : std::string("after the last layer"),
        m.count, m.largest, m.position + 1, m.dimension, m.median);
  }
  if (!further.massive.empty() &&
      std::all_of(further.massive.begin(), further.massive.end(), [](const auto& m) { return m.count == 0; })) {
    out += "no massive activations\n";
  }
  if (!further.collapse.empty()) {
    out += "hidden states before each layer, after the last layer, after the final norm: pairwise cosine";
    for (const auto& samples : further.collapse)
      out += fmt::format(" {:.3f}", mean_over(samples, &HiddenSimilarity::cosine));
    out += "; effective rank";
    for (const auto& samples : further.collapse)
      out += fmt::format(" {:.1f}", mean_over(samples, &HiddenSimilarity::effective_rank));
    out += "\n";
  }
  for (const auto& [place, layers] : further.outliers) {
    const auto listed = [&](const char* title, auto&& number) {
      out += fmt::format("{}{}", title, layers.size() > 1 ? " by layer:" : ":");
      for (const Outliers::Layer& l : layers) out += fmt::format(" {:.3g}", number(l));
    };
    out += fmt::format("outliers of {}: ", place);
    listed("kurtosis", [](const Outliers::Layer& l) { return l.kurtosis; });
    listed("; largest / median", [](const Outliers::Layer& l) { return l.ratio; });
    listed("; largest channel / median channel",
           [](const Outliers::Layer& l) { return l.channels.empty() ? 0 : l.channels.front().second; });
    listed("; positions with a spike", [](const Outliers::Layer& l) { return l.spikes; });
    out += "\n";
  }
  if (further.decode) {
    const DecodeReads::Result& d = *further.decode;
    out += fmt::format(
        "decode step after {} tokens: {}% of the (query, key) pairs have a weight above zero, {}% of the rows of V "
        "have one for a query head of their group; {:.1f} of {:.1f} MB of K and V are needed\n",
        d.length, percent_number(row_mean(d.alive)), percent_number(row_mean(d.alive_in_group)), d.alive_bytes / 1e6,
        d.visible_bytes / 1e6);
  }
  return out;
}

}  // namespace lazy::sinks
