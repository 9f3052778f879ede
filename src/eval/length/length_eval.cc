#include "eval/length/length_eval.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/error.h"
#include "core/known_names.h"
#include "core/text.h"
#include "eval/length/measurement.h"
#include "eval/tasks/documents.h"

namespace lazy::eval::length {
namespace {

const std::vector<std::string> kTasks = {"heldout", "wikitext", "lambada_openai", "passkey", "recall"};

void check_lengths(const LengthEvalOptions& o) {
  if (o.lengths.empty()) fail("eval", "--lengths: expected at least one length, found none");
  for (size_t i = 0; i < o.lengths.size(); ++i) {
    if (o.lengths[i] < 2) fail("eval", "--lengths: expected at least 2 tokens, found {}", o.lengths[i]);
    if (i > 0 && o.lengths[i] <= o.lengths[i - 1])
      fail("eval", "--lengths: expected increasing lengths, found {} after {}", o.lengths[i], o.lengths[i - 1]);
  }
  if (o.stride < 0 || o.stride > o.lengths.front()) {
    fail("eval", "--stride: expected 1 to {} (the first length), found {}", o.lengths.front(), o.stride);
  }
}

std::vector<std::string> selected_tasks(const LengthEvalOptions& o) {
  std::vector<std::string> tasks = o.tasks;
  if (tasks.empty()) {
    if (!o.text.empty() || !o.corpus.empty()) tasks.push_back("heldout");
    if (!o.data.empty()) tasks.push_back("wikitext");
    if (!o.data.empty() && has_task_files(find_task("lambada_openai"), o.data)) tasks.push_back("lambada_openai");
    if (tasks.empty())
      fail("eval", "--lengths: nothing to measure: expected --corpus, --text, --data or --tasks passkey,recall");
  }
  for (const std::string& task : tasks) {
    if (!contains(kTasks, task))
      fail("eval", "--lengths: task '{}': expected one of {}{}", task, fmt::join(kTasks, ", "),
           did_you_mean(task, kTasks));
    if (std::count(tasks.begin(), tasks.end(), task) > 1)
      fail("eval", "--tasks: expected each task only once, found {} twice", task);
    if (task == "heldout" && o.text.empty() == o.corpus.empty()) {
      fail("eval", "task heldout: expected --corpus CORPUS_DIR or --text FILE, found {}",
           o.text.empty() ? "neither" : "both");
    }
    if ((task == "wikitext" || task == "lambada_openai") && o.data.empty())
      fail("eval", "task {} needs --data DIR", task);
  }
  return tasks;
}

Json settings(const LengthEvalOptions& o, const std::vector<std::string>& tasks) {
  return {{"lengths", o.lengths},
          {"tasks", tasks},
          {"bos", o.bos},
          {"per_document", o.per_document},
          {"stride", o.stride},
          {"limit", o.limit ? Json(*o.limit) : Json(nullptr)},
          {"interval", {{"level", 0.95}, {"resamples", o.resamples}}},
          {"seed", o.synthetic.seed},
          {"probe", {{"depths", o.synthetic.depths}, {"samples", o.synthetic.samples}, {"pairs", o.synthetic.pairs}}}};
}

Json model_entry(const ModelVariant& variant, const LoadedModel& model) {
  return {{"label", variant.label},
          {"path", variant.path},
          {"variant", variant.variant},
          {"kind", model.config.kind()},
          {"rope_base", model.config.positions.rope_base},
          {"training_length", model.config.max_length},
          {"parameters", count_parameters(model.config).total},
          {"device", model.device},
          {"tokenizer_fingerprint", fmt::format("{:016x}", model.tokenizer->fingerprint())}};
}

}  // namespace

ModelOptions parse_variant(const std::string& text, ModelOptions base) {
  if (text.empty()) return base;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (value.empty() ||
        (key != "rope-base" && key != "positions" && key != "cache" && key != "weights" && key != "quantize")) {
      fail(
          "eval",
          "--variant {}: expected rope-base=X, positions=yarn:4, cache=streaming:4+508, weights=int8 or quantize=w8a8, "
          "found '{}'",
          text, part);
    }
    if (key == "positions") base.positions = value;
    if (key == "cache") base.cache = value;
    if (key == "weights") base.weights = value;
    if (key == "quantize") base.quantize = value;
    if (key != "rope-base") continue;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), base.rope_base);
    if (error != std::errc() || end != value.data() + value.size() || !(base.rope_base > 1)) {
      fail("eval", "--variant {}: rope-base: expected a number above 1, found '{}'", text, value);
    }
  }
  return base;
}

Json evaluate_lengths(const std::vector<ModelVariant>& variants, const LengthEvalOptions& options) {
  check_lengths(options);
  const std::vector<std::string> tasks = selected_tasks(options);
  std::map<std::string, TextSource> texts;
  std::vector<TextPair> lambada;
  Json results = {{"schema", "lazy.length/1"},          {"command", options.command}, {"date", options.date},
                  {"config", settings(options, tasks)}, {"models", Json::array()},    {"results", Json::object()}};
  for (const std::string& task : tasks) {
    Json& result = results["results"][task] = {{"models", Json::array()}};
    if (task == "lambada_openai") {
      lambada = load_lambada(options.data, options.limit);
      result["source"] = options.data.string();
    } else if (task == "heldout" || task == "wikitext") {
      texts[task] = task == "wikitext"     ? wikitext_source(options.data, options.limit)
                    : options.text.empty() ? corpus_source(options.corpus, options.split, options.limit)
                                           : file_source(options.text);
      result["source"] = texts[task].path;
      result["documents"] = std::max(texts[task].texts.size(), texts[task].ids.size());
    }
  }

  std::map<std::string, std::vector<LossCurve>> curves;
  for (const ModelVariant& variant : variants) {
    const LoadedModel model = variant.load();
    if (options.bos && !model.tokenizer->bos_id())
      fail("eval", "--bos: the {} tokenizer of {} has no BOS token", model.tokenizer->kind(), variant.path);
    results["models"].push_back(model_entry(variant, model));
    for (const std::string& task : tasks) {
      const std::string title = variants.size() > 1 ? variant.label + ": " + task : task;
      const OnEntry on_entry = [&](const Json& entry) {
        if (!options.on_length) return;
        Json unfinished = results;
        unfinished["unfinished"] = true;
        unfinished["results"][task]["models"].push_back(entry);
        options.on_length(unfinished);
      };
      Measurement measured = task == "lambada_openai" ? measure_lambada(model, lambada, options, title, on_entry)
                             : texts.contains(task)   ? measure_text(model, texts[task], options, title, on_entry)
                                                      : measure_synthetic(model, task, options, title, on_entry);
      if (measured.entry["lengths"].empty())
        fail("eval", "{}: all lengths were skipped: {}", title, measured.entry["skipped"][0]["why"].get<std::string>());
      results["results"][task]["models"].push_back(std::move(measured.entry));
      curves[task].push_back(std::move(measured.curve));
    }
  }
  for (const std::string& task : tasks) {
    if (task == "passkey" || task == "recall") continue;
    Json& comparisons = results["results"][task]["change_against_first"] = Json::array();
    for (size_t s = 1; s < variants.size(); ++s) {
      if (Json rows = compare_change(curves[task][0], curves[task][s], options); !rows.empty()) {
        comparisons.push_back({{"model", s}, {"lengths", rows}});
      }
    }
  }
  return results;
}

}  // namespace lazy::eval::length
