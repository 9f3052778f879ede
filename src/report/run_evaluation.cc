#include "report/run_evaluation.h"

#include "report/json_file.h"

namespace lazy::report {
namespace {

namespace fs = std::filesystem;

std::optional<double> metric(const Field& task, const std::string& name) {
  for (const std::string& key : {name + ",none", name}) {
    if (task.has(key)) return task[key].number();
  }
  return std::nullopt;
}

// "N/A" where there is none.
std::optional<double> standard_error(const Field& task, const std::string& name) {
  const std::string key = name + "_stderr,none";
  return task.has(key) && !task[key].json().is_string() ? std::optional(task[key].number()) : std::nullopt;
}

// The accuracy that a task is known by: what the average names, otherwise "acc".
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
  if (models.size() != 1) models.wrong("one model, the run's");
  const Field lengths = models.at(0)["lengths"];
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths.at(i).has("loss"))
      run->loss_by_length[static_cast<int64_t>(lengths.at(i)["length"].number())] = lengths.at(i)["loss"].number();
  }
}

}  // namespace lazy::report
