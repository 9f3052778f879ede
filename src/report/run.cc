#include "report/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "report/run_evaluation.h"
#include "report/run_status.h"
#include "report/settings.h"

namespace lazy::report {
namespace fs = std::filesystem;
namespace {

void check_shape(const std::vector<std::vector<double>>& values, const std::vector<std::vector<double>>& like,
                 const Field& field) {
  if (values.size() != like.size() || values.front().size() != like.front().size()) {
    field.wrong(fmt::format("{} layers of {} heads", like.size(), like.front().size()));
  }
}

AttentionMap parse_map(const Field& field) {
  AttentionMap map;
  map.layer = static_cast<int>(field["layer"].number());
  map.head = static_cast<int>(field["head"].number());
  const Field tokens = field["tokens"], weights = field["weights"];
  for (size_t i = 0; i < tokens.size(); ++i) map.tokens.push_back(to_valid_utf8(tokens.at(i).string()));
  if (weights.size() != map.tokens.size()) weights.wrong(fmt::format("{} rows, one a token", map.tokens.size()));
  for (size_t i = 0; i < weights.size(); ++i) {
    map.weights.push_back(weights.at(i).numbers());
    if (map.weights.back().size() != i + 1)
      weights.at(i).wrong(fmt::format("{} weights, those of the visible keys", i + 1));
  }
  return map;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.dump();
}

void flatten(const Json& value, const std::string& prefix, std::vector<std::pair<std::string, std::string>>* out) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) flatten(inner, prefix.empty() ? key : prefix + "." + key, out);
  } else if (!value.is_null()) {
    out->emplace_back(prefix, text_of(value));
  }
}

// "attention/layer_03/sink_ratio" adds a point to the curve of the fourth layer.
void read_layers(const Json& line, double tokens, RunData* run) {
  constexpr std::string_view prefix = "attention/layer_";
  for (const auto& [key, value] : line.items()) {
    if (!key.starts_with(prefix) || !value.is_number()) continue;
    size_t layer = 0;
    const char* end = key.data() + key.size();
    const auto [stop, code] = std::from_chars(key.data() + prefix.size(), end, layer);
    if (code != std::errc() || stop == end || *stop != '/' || layer >= 10000) continue;
    auto& curves = run->by_layer[std::string(stop + 1, end)];
    if (curves.size() <= layer) curves.resize(layer + 1);
    curves[layer].emplace_back(tokens, value.get<double>());
  }
}

// One logged step a line. A last line without its newline is a write under way and is passed over.
void read_log(const fs::path& path, RunData* run) {
  const std::string text = read_file(path);
  std::vector<double> speeds;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line = strip(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", path.string(), number);
    const Json json = parse_json(line, place);
    const Field entry(json, place);
    const double tokens = entry["tokens"].number();
    const auto add = [&](const char* key, Curve2d* curve) {
      if (entry.has(key)) curve->emplace_back(tokens, entry[key].number());
    };
    add("loss_metrics/global_avg_loss", &run->train_loss);
    add("validation_metrics/loss", &run->validation_loss);
    add("validation_metrics/bits_per_byte", &run->validation_bits);
    read_layers(json, tokens, run);
    if (entry.has("step") && entry.has("time")) run->pace.emplace_back(entry["step"].number(), entry["time"].number());
    if (run->pace.size() > 50) run->pace.erase(run->pace.begin());
    if (entry.has("throughput(tps)")) speeds.push_back(entry["throughput(tps)"].number());
    run->tokens = std::max(run->tokens, tokens);
    if (entry.has("step")) run->steps = std::max(run->steps, entry["step"].number());
    if (entry.has("time")) run->seconds = std::max(run->seconds, entry["time"].number());
  }
  std::erase_if(speeds, [](double s) { return !(s > 0); });
  if (!speeds.empty()) {
    std::nth_element(speeds.begin(), speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2), speeds.end());
    run->tokens_per_second = speeds[speeds.size() / 2];
  }
}

std::string kind_of(const RunData& run) {
  std::string normalizer = run.sinks ? run.sinks->normalizer : "";
  for (const auto& [key, value] : run.settings) {
    if (key == "model.normalizer") normalizer = value;
    if (key == "model.kind" && normalizer.empty())
      normalizer = value == "lazy" ? "elastic" : value == "transformer" ? "softmax" : value;
  }
  for (const auto& [key, value] : run.facts) {
    if (!normalizer.empty()) break;
    if (key == "model.normalizer") normalizer = value;
    if (key == "kind") normalizer = value == "lazy" ? "elastic" : value == "transformer" ? "softmax" : value;
  }
  return normalizer == "elastic" ? "lazy" : normalizer;
}

FurtherReport parse_further(const Field& field) {
  FurtherReport out;
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double v : values) sum += v;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
  };
  if (field.has("weights")) {
    out.sink_k = field["weights"]["sink_k"].numbers();
    out.entropy = field["weights"]["entropy"].matrix();
  }
  if (field.has("vectors")) {
    for (const auto& [place, values] : field["vectors"].json().items()) {
      const Field of_place = field["vectors"][place];
      out.vectors.push_back({place, {of_place["norm"].matrix(), of_place["variance"].matrix()}});
    }
  }
  for (size_t n = 0; field.has("massive") && n < field["massive"].size(); ++n) {
    const Field place = field["massive"].at(n);
    out.massive.push_back({place["per_sample"].number(), place["largest"].number(), place["median"].number(),
                           static_cast<int64_t>(place["position"].number()),
                           static_cast<int64_t>(place["dimension"].number())});
  }
  for (size_t n = 0; field.has("collapse") && n < field["collapse"].size(); ++n) {
    out.cosine.push_back(mean(field["collapse"].at(n)["cosine"].numbers()));
    out.effective_rank.push_back(mean(field["collapse"].at(n)["effective_rank"].numbers()));
  }
  return out;
}

}  // namespace

SinkReport parse_sinks(const Json& json, const std::string& file) {
  const Field top(json, file);
  SinkReport report;
  const Field overall = top["overall"];
  const auto measure = [&](const char* key, double* mean, std::vector<std::vector<double>>* heads) {
    // Released mass may fall below zero, and density rise above one, when an offset is positive.
    *mean = overall[key].number();
    if (!std::isfinite(*mean)) overall[key].wrong("a finite number");
    const Field field = top["per_head"][key];
    *heads = field.matrix();
    if (heads->empty() || heads->front().empty()) field.wrong("rows of layers with a number for each head");
    check_shape(*heads, report.sink_ratio.empty() ? *heads : report.sink_ratio, field);
  };
  measure("sink_ratio", &report.overall.sink_ratio, &report.sink_ratio);
  measure("density", &report.overall.density, &report.density);
  measure("released_mass", &report.overall.released_mass, &report.released_mass);
  measure("alive_fraction", &report.overall.alive_fraction, &report.alive_fraction);
  measure("sink_1_0.3", &report.overall.sink_1, &report.sink_1);
  overall["alive_fraction"].share();
  const Field settings = top["settings"];
  report.length = static_cast<int64_t>(settings["length"].number());
  report.samples = static_cast<int64_t>(settings["samples"].number());
  report.sink_length = static_cast<int64_t>(settings["sink_length"].number());
  report.sink_samples = static_cast<int64_t>(settings["sink_samples"].number());
  if (settings.has("bos") && settings["bos"].json().is_boolean()) report.bos = settings["bos"].json().get<bool>();
  report.text = top["text"]["path"].string();
  report.normalizer = top["model"]["normalizer"].string();
  if (top.has("command")) report.command = top["command"].string();
  if (top.has("further")) report.further = parse_further(top["further"]);
  if (top.has("attention_maps")) {
    const Field maps = top["attention_maps"];
    for (size_t i = 0; i < maps.size(); ++i) report.maps.push_back(parse_map(maps.at(i)));
  }
  return report;
}

RunData load_run(const fs::path& folder) {
  if (!fs::is_directory(folder))
    fail("report", "{}: expected a run's folder, found {}", folder.string(), fs::exists(folder) ? "a file" : "nothing");
  RunData run;
  run.folder = folder;
  run.name = fs::weakly_canonical(folder).filename().string();
  size_t found = 0;
  const auto part = [&](const char* file, const char* shows, const auto& read) {
    const fs::path path = folder / file;
    if (fs::exists(path)) {
      ++found;
      read(path);
    } else {
      run.missing.push_back(fmt::format("no {}: {} left out", file, shows));
    }
  };
  part("run.json", "counts and versions", [&](const fs::path& path) {
    const Json json = load_json(path);
    if (!json.is_object()) Field(json, path.string()).wrong("an object");
    flatten(json, "", &run.facts);
    if (json.contains("name") && json["name"].is_string()) run.name = json["name"].get<std::string>();
  });
  part("config.toml", "the configuration", [&](const fs::path& path) {
    run.config_text = read_file(path);
    run.settings = flatten_toml(run.config_text, path.string());
  });
  part("log.jsonl", "learning curves", [&](const fs::path& path) { read_log(path, &run); });
  part("eval.json", "results of lazy eval", [&](const fs::path& path) { read_eval(path, &run); });
  if (const fs::path path = folder / "lengths.json"; fs::exists(path)) read_lengths(path, &run);
  part("sinks.json", "sink measures and attention maps",
       [&](const fs::path& path) { run.sinks = parse_sinks(load_json(path), path.string()); });
  part("samples.json", "text samples", [&](const fs::path& path) {
    const Json json = load_json(path);
    const Field samples(json, path.string(), "samples");
    for (size_t i = 0; i < samples.size(); ++i) {
      run.samples.push_back(
          {to_valid_utf8(samples.at(i)["prompt"].string()), to_valid_utf8(samples.at(i)["text"].string())});
    }
  });
  if (found == 0) {
    fail("report", "{}: expected a run's folder (config.toml, run.json, log.jsonl, ...), found none of its files",
         folder.string());
  }
  const auto last_finite = [](const Curve2d& curve) -> std::optional<double> {
    for (auto at = curve.rbegin(); at != curve.rend(); ++at) {
      if (std::isfinite(at->second)) return at->second;
    }
    return std::nullopt;
  };
  if (!run.heldout_loss) {
    run.heldout_loss = last_finite(run.validation_loss);
    run.heldout_source = "last validation";
    if (!run.bits_per_byte) run.bits_per_byte = last_finite(run.validation_bits);
  }
  if (!run.perplexity && run.heldout_loss) run.perplexity = std::exp(*run.heldout_loss);
  run.kind = kind_of(run);
  find_status(&run);
  return run;
}

}  // namespace lazy::report
