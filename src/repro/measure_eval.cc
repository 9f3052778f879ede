// Measurements that use the evaluation library: losses at lengths beyond the training length together with the
// similarity of hidden states, benchmarks, and sizes of benchmark files. Also reads learned parameters.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "eval/evaluate.h"
#include "eval/length/perplexity.h"
#include "eval/tasks/documents.h"
#include "repro/measure.h"
#include "sinks/attention_maps.h"
#include "sinks/probe_measures.h"
#include "sinks/text_source.h"

namespace lazy::repro {
namespace fs = std::filesystem;

namespace {

constexpr size_t kCollapseTexts = 16;

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// Returns the token streams of the benchmarks by name; benchmarks without a file are omitted.
std::map<std::string, std::vector<int32_t>> streams(const MeasureInputs& inputs, const Tokenizer& tokenizer) {
  std::map<std::string, std::vector<int32_t>> out;
  if (inputs.data.empty()) return out;
  if (eval::has_task_files(eval::find_task("wikitext"), inputs.data)) {
    for (const std::string& page : eval::length::wikitext_source(inputs.data, {}).texts)
      append(out["wikitext"], tokenizer.encode(page));
  }
  if (const eval::Task lambada = eval::find_task("lambada_openai"); eval::has_task_files(lambada, inputs.data)) {
    std::string items;  // all passages, joined to one stream
    for (const eval::TaskDocument& row : eval::read_rows(lambada, inputs.data))
      items += row.document.at("text").get<std::string>() + "\n\n";
    append(out["lambada_openai"], tokenizer.encode(items));
  }
  return out;
}

// Returns similarity and effective rank of the hidden states on the first `length` tokens of each stretch.
Json collapse(LoadedModel& loaded, const Stretches& stretches, int64_t length) {
  const at::NoGradGuard no_grad;
  std::vector<double> cosine, rank;
  for (size_t n = 0; n < std::min(kCollapseTexts, stretches.size()); ++n) {
    std::vector<int64_t> text(stretches[n].begin(), stretches[n].begin() + length);
    if (const auto bos = loaded.tokenizer->bos_id()) text.front() = *bos;
    const auto hidden = loaded.model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(loaded.model.device())).hidden;
    const sinks::HiddenSimilarity a = sinks::hidden_similarity(hidden[0]);
    cosine.push_back(a.cosine);
    rank.push_back(a.effective_rank);
  }
  return {{"cosine", cosine}, {"effective_rank", rank}};
}

}  // namespace

Json measure_lengths(const MeasureInputs& inputs, const Json& settings) {
  LoadedModel loaded = load(inputs);
  const auto lengths = settings.at("lengths").get<std::vector<int64_t>>();
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end()),
                tokens = std::max(settings.value("stretch", longest), longest),
                most = settings.at("blocks").get<int64_t>();
  std::map<std::string, Stretches> texts;
  texts["heldout"] = heldout_stretches(inputs.corpus, inputs.sequences, tokens, most);
  for (const auto& [name, ids] : streams(inputs, *loaded.tokenizer)) texts[name] = stretches_of(ids, tokens, most);
  Json out = Json::object();
  for (const auto& [name, stretches] : texts) {
    if (stretches.empty()) {
      log::info("{}: skipped because the text has fewer than {} tokens", name, tokens + 1);
      continue;
    }
    for (const int64_t length : lengths) {
      const std::string title = inputs.progress ? fmt::format("{} at {}", name, length) : "";
      const std::string key = std::to_string(length);
      out[name][key] =
          thinned(stretch_losses(loaded.model, stretches, length, loaded.tokenizer->bos_id(), title), kLengthGroups);
      if (name == "heldout") out["collapse"][key] = collapse(loaded, stretches, length);
    }
  }
  return out;
}

Json measure_tasks(const MeasureInputs& inputs, const Json& settings) {
  LoadedModel loaded = load(inputs);
  eval::TaskOptions options;
  options.progress = inputs.progress;
  options.score.cache = streaming_cache(settings);
  options.prompt.bos_every_window = settings.value("bos_every_window", false);
  const std::string wanted = settings.value("task", std::string()),
                    suffix = options.prompt.bos_every_window ? "-bos" : "";
  Json out = Json::object();
  for (const eval::Task& task : eval::builtin_tasks()) {
    if (!wanted.empty() && task.name != wanted) continue;
    if (!eval::has_task_files(task, inputs.data)) {
      log::info("{}: no file of task {}; the task is skipped", inputs.data.string(), task.name);
      continue;
    }
    try {
      const auto results = eval::evaluate_tasks(loaded.model, *loaded.tokenizer, {task}, inputs.data, options);
      for (const eval::Metric& metric : results.at(0).metrics) {
        Json& found = out[task.name + suffix][metric.name] = {{"value", metric.value}, {"n", results[0].effective}};
        if (metric.standard_error) found["stderr"] = *metric.standard_error;
      }
    } catch (const eval::SequenceTooLong&
                 error) {  // PIQA has an answer choice of 268 tokens; the context of --scale tiny is 256
      log::info("task {} skipped: {}", task.name, error.what());
    }
  }
  return out;
}

std::optional<std::pair<double, int>> mean_accuracy(const Json& tasks) {
  double sum = 0;
  int count = 0;
  for (const eval::Task& task : eval::builtin_tasks()) {
    if (task.headline.empty() || !tasks.contains(task.name) || !tasks.at(task.name).contains(task.headline)) continue;
    sum += tasks.at(task.name).at(task.headline).at("value").get<double>();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::pair{sum / count, count};
}

Json measure_learned(const MeasureInputs& inputs) {
  const report::LearnedParameters learned = sinks::learned_parameters(inputs.model);
  Json out = Json::object();
  if (!learned.tau.empty()) out["tau"] = learned.tau;
  if (!learned.distance_bias.empty()) out["distance_bias"] = learned.distance_bias;
  if (!learned.alibi_slopes.empty()) out["alibi_slopes"] = learned.alibi_slopes;
  out["tau_initial"] = learned.tau_initial;
  return out;
}

Json count_datasets(const fs::path& data) {
  if (!fs::is_directory(data))
    fail("repro", "--data {}: expected a folder, found {}", data.string(), fs::exists(data) ? "a file" : "nothing");
  const std::pair<const char*, const char*> beginnings[] = {{"wiki", "wikitext"},
                                                            {"lambada", "lambada"},
                                                            {"piqa", "piqa"},
                                                            {"hellaswag", "hellaswag"},
                                                            {"winogrande", "winogrande"},
                                                            {"arc", "arc"},
                                                            {"social_iqa", "siqa"},
                                                            {"siqa", "siqa"},
                                                            {"boolq", "boolq"}};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(data)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() && (extension == ".jsonl" || extension == ".txt" || extension == ".raw"))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Json out = Json::object();
  for (const fs::path& file : files) {
    const std::string stem = file.filename().string();
    for (const auto& [beginning, set] : beginnings) {
      const bool lines = file.extension() == ".jsonl";
      if (!stem.starts_with(beginning) || (!lines && std::string(set) != "wikitext")) continue;
      const std::string content = read_file(file);
      int64_t samples = 0;
      if (lines) {
        for (const std::string& line : split(content, '\n')) samples += strip(line).empty() ? 0 : 1;
      } else {
        samples = static_cast<int64_t>(eval::wikitext_pages(content).size());
      }
      Json& entry = out[set];
      if (entry.is_null()) entry = {{"samples", 0}, {"files", ""}};
      entry["samples"] = entry["samples"].get<int64_t>() + samples;
      entry["files"] =
          entry["files"].get<std::string>() + (entry["files"].get<std::string>().empty() ? "" : ", ") + stem;
      break;
    }
  }
  return out;
}

}  // namespace lazy::repro
