#include <fmt/format.h>

#include "core/text.h"
#include "sinks/study.h"

namespace lazy::sinks {
using nlohmann::ordered_json;

namespace {

ordered_json rounded(const WeightRows& rows) {
  // Six digits are far finer than any picture; a weight above zero never becomes zero.
  ordered_json out = ordered_json::array();
  for (const auto& row : rows) {
    ordered_json line = ordered_json::array();
    for (double w : row) line.push_back(std::stod(fmt::format("{:.6g}", w)));
    out.push_back(std::move(line));
  }
  return out;
}

double row_mean(const std::vector<double>& row) { return mean(HeadMatrix{row}); }

}  // namespace

ordered_json to_json(const Study& s, const ModelConfig& config, const std::string& model, const std::string& text,
                     const StudyOptions& options, const std::string& command) {
  ordered_json out{{"format", "lazy-sinks"}, {"version", 1}};
  out["model"] = {{"path", model},
                  {"kind", config.kind()},
                  {"normalizer", config.normalizer},
                  {"num_layers", config.num_layers},
                  {"num_heads", config.num_heads},
                  {"rope_base", config.rope_base}};
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
    out["overall"][key] = mean(*values);
    for (const auto& row : *values) out["per_layer"][key].push_back(row_mean(row));
    out["per_head"][key] = *values;
  }
  out["attention_maps"] = ordered_json::array();
  for (const Map& map : s.maps) {
    out["attention_maps"].push_back(
        {{"layer", map.layer}, {"head", map.head}, {"tokens", map.tokens}, {"weights", rounded(map.weights)}});
  }
  if (const ordered_json further = to_json(s.further); !further.empty()) out["further"] = further;
  out["command"] = command;
  return out;
}

std::string to_table(const Study& s) {
  std::string table = fmt::format("{:>7}  {:>8}  {:>10}  {:>13}  {:>14}  {:>10}\n", "layer", "density", "sink ratio",
                                  "released mass", "alive fraction", "Sink_1^0.3");
  const auto line = [&](const std::string& name, double density, double sink, double released, double alive,
                        double sink_1) {
    table += fmt::format("{:>7}  {:>7.2f}%  {:>9.2f}%  {:>12.2f}%  {:>13.2f}%  {:>9.2f}%\n", name, 100 * density,
                         100 * sink, 100 * released, 100 * alive, 100 * sink_1);
  };
  for (size_t l = 0; l < s.sink_1.size(); ++l) {
    line(std::to_string(l + 1), row_mean(s.measures.density[l]), row_mean(s.measures.sink_ratio[l]),
         row_mean(s.measures.released_mass[l]), row_mean(s.measures.alive_fraction[l]), row_mean(s.sink_1[l]));
  }
  line("all", mean(s.measures.density), mean(s.measures.sink_ratio), mean(s.measures.released_mass),
       mean(s.measures.alive_fraction), mean(s.sink_1));
  table += fmt::format("{} sample{} of {} tokens; Sink_1^0.3 from {} of {} tokens\n", s.samples,
                       s.samples == 1 ? "" : "s", s.length, s.sink_samples, s.sink_length);
  return table + to_table(s.further);
}

}  // namespace lazy::sinks
