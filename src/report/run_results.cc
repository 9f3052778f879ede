// Reads results that other commands store in the folder of a run: eval.json, lengths.json, sinks.json.
#include <fmt/format.h>

#include <cmath>

#include "core/text.h"
#include "report/json_file.h"
#include "report/run.h"

namespace lazy::report {
namespace fs = std::filesystem;
namespace {

std::optional<double> metric(const Field& task, const std::string& name) {
  for (const std::string& key : {name + ",none", name}) {
    if (task.has(key)) return task[key].number();
  }
  return std::nullopt;
}

// nullopt if the standard error is absent or "N/A".
std::optional<double> standard_error(const Field& task, const std::string& name) {
  const std::string key = name + "_stderr,none";
  return task.has(key) && !task[key].json().is_string() ? std::optional(task[key].number()) : std::nullopt;
}

// The name of a task's main accuracy: the metric that "average" names, otherwise "acc".
std::string headline_metric(const Field& top, const std::string& task) {
  if (top.has("average") && top["average"].has("metrics") && top["average"]["metrics"].has(task))
    return top["average"]["metrics"][task].string();
  return "acc";
}

void read_scores(const Field& top, const Field& results, RunData* run) {
  for (const auto& [task, unused] : results.json().items()) {
    const std::string name = headline_metric(top, task);
    const auto value = metric(results[task], name);
    if (!value) continue;
    Score score{task, name, *value, standard_error(results[task], name), {}};
    if (top.has("chance") && top["chance"].has(task)) score.chance = metric(top["chance"][task], "random");
    run->scores.push_back(std::move(score));
  }
  if (top.has("average")) run->mean_score = metric(top["average"], "acc");
}

void check_shape(const std::vector<std::vector<double>>& values, const std::vector<std::vector<double>>& like,
                 const Field& field) {
  if (values.size() != like.size() || values.front().size() != like.front().size()) {
    field.wrong(fmt::format("{} layers of {} heads", like.size(), like.front().size()));
  }
}

// `first`: the number that the file gives to the first layer and head.
AttentionMap parse_map(const Field& field, int first) {
  AttentionMap map;
  map.layer = static_cast<int>(field["layer"].number()) - first;
  map.head = static_cast<int>(field["head"].number()) - first;
  const Field tokens = field["tokens"], weights = field["weights"];
  for (size_t i = 0; i < tokens.size(); ++i) map.tokens.push_back(to_valid_utf8(tokens.at(i).string()));
  if (weights.size() != map.tokens.size()) weights.wrong(fmt::format("{} rows, one per token", map.tokens.size()));
  for (size_t i = 0; i < weights.size(); ++i) {
    map.weights.push_back(weights.at(i).numbers());
    if (map.weights.back().size() != i + 1) weights.at(i).wrong(fmt::format("{} weights, one per visible key", i + 1));
  }
  return map;
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

void read_eval(const fs::path& path, RunData* run) {
  const Json json = load_json(path);
  const Field top(json, path.string()), results = top["results"];
  if (!results.json().is_object()) results.wrong("an object");
  if (results.has("heldout")) {
    const Field task = results["heldout"];
    run->heldout_loss = metric(task, "loss");
    run->bits_per_byte = metric(task, "bits_per_byte");
    run->perplexity = metric(task, "perplexity");
    run->heldout_source = "lazy eval";
  }
  if (results.has("wikitext")) run->word_perplexity = metric(results["wikitext"], "word_perplexity");
  read_scores(top, results, run);
  if (top.has("config") && top["config"].has("command")) run->eval_command = top["config"]["command"].string();
}

void read_lengths(const fs::path& path, RunData* run) {
  const Json json = load_json(path);
  const Field top(json, path.string());
  if (!top["results"].has("heldout")) return;
  const Field models = top["results"]["heldout"]["models"];
  if (models.size() != 1) models.wrong("one model, the model of the run");
  const Field lengths = models.at(0)["lengths"];
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths.at(i).has("loss"))
      run->loss_by_length[static_cast<int64_t>(lengths.at(i)["length"].number())] = lengths.at(i)["loss"].number();
  }
}

SinkReport parse_sinks(const Json& json, const std::string& file) {
  const Field top(json, file);
  const double version = top["version"].number();
  if (version != 1 && version != 2) top["version"].wrong("1 or 2");
  SinkReport report;
  const Field overall = top["overall"];
  const auto measure = [&](const char* key, auto* mean, std::vector<std::vector<double>>* heads) {
    // If an offset is positive, released mass can be negative and density can exceed one.
    const double value = overall[key].number();
    *mean = value;
    if (!std::isfinite(value)) overall[key].wrong("a finite number");
    const Field field = top["per_head"][key];
    *heads = field.matrix();
    if (heads->empty() || heads->front().empty()) field.wrong("one row per layer with one number per head");
    check_shape(*heads, report.sink_ratio.empty() ? *heads : report.sink_ratio, field);
  };
  measure("sink_ratio", &report.overall.sink_ratio, &report.sink_ratio);
  measure("density", &report.overall.density, &report.density);
  measure("released_mass", &report.overall.released_mass, &report.released_mass);
  measure("alive_fraction", &report.overall.alive_fraction, &report.alive_fraction);
  overall["alive_fraction"].share();
  const Field settings = top["settings"];
  report.length = static_cast<int64_t>(settings["length"].number());
  report.samples = static_cast<int64_t>(settings["samples"].number());
  report.sink_length = static_cast<int64_t>(settings["sink_length"].number());
  report.sink_samples = static_cast<int64_t>(settings["sink_samples"].number());
  if (report.sink_samples > 0) measure("sink_1_0.3", &report.overall.sink_1, &report.sink_1);
  if (settings.has("bos") && settings["bos"].json().is_boolean()) report.bos = settings["bos"].json().get<bool>();
  report.text = top["text"]["path"].string();
  report.normalizer = top["model"]["normalizer"].string();
  if (top.has("command")) report.command = top["command"].string();
  if (top.has("further")) report.further = parse_further(top["further"]);
  if (top.has("attention_maps")) {
    const Field maps = top["attention_maps"];
    for (size_t i = 0; i < maps.size(); ++i) {
      report.maps.push_back(parse_map(maps.at(i), version == 1 ? 1 : 0));
    }
  }
  return report;
}

}  // namespace lazy::report
