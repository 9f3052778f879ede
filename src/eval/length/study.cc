#include "eval/length/study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/text.h"
#include "eval/data/files.h"
#include "eval/length/measures.h"

namespace lazy::eval::length {
namespace {

const std::vector<std::string> kTasks = {"heldout", "wikitext", "lambada_openai", "passkey", "recall"};

void check_lengths(const StudyOptions& o) {
  if (o.lengths.empty()) fail("eval", "--lengths: expected lengths, found none");
  for (size_t i = 0; i < o.lengths.size(); ++i) {
    if (o.lengths[i] < 2) fail("eval", "--lengths: expected 2 or more tokens, found {}", o.lengths[i]);
    if (i > 0 && o.lengths[i] <= o.lengths[i - 1])
      fail("eval", "--lengths: expected increasing lengths, found {} after {}", o.lengths[i], o.lengths[i - 1]);
  }
  if (o.stride < 0 || o.stride > o.lengths.front()) {
    fail("eval", "--stride: expected 1 to {} (the first length), found {}", o.lengths.front(), o.stride);
  }
}

std::vector<std::string> wanted(const StudyOptions& o) {
  std::vector<std::string> tasks = o.tasks;
  if (tasks.empty()) {
    if (!o.text.empty() || !o.corpus.empty()) tasks.push_back("heldout");
    if (!o.data.empty()) tasks.push_back("wikitext");
    if (!o.data.empty() && has_task_files(find_task("lambada_openai"), o.data)) tasks.push_back("lambada_openai");
    if (tasks.empty())
      fail("eval",
           "--lengths: nothing to measure: expected --corpus, --text, --data or --tasks passkey,recall, found none");
  }
  for (const std::string& task : tasks) {
    if (std::find(kTasks.begin(), kTasks.end(), task) == kTasks.end()) {
      const std::string close = nearest(task, kTasks);
      fail("eval", "--lengths: task '{}': expected one of {}{}", task, fmt::join(kTasks, ", "),
           close.empty() ? "" : "; did you mean '" + close + "'?");
    }
    if (std::count(tasks.begin(), tasks.end(), task) > 1)
      fail("eval", "--tasks: expected each task once, found {} twice", task);
    if (task == "heldout" && o.text.empty() == o.corpus.empty()) {
      fail("eval", "task heldout: expected --corpus CORPUS_DIR or --text FILE, found {}",
           o.text.empty() ? "neither" : "both");
    }
    if ((task == "wikitext" || task == "lambada_openai") && o.data.empty())
      fail("eval", "task {} needs --data DIR", task);
  }
  return tasks;
}

Json settings(const StudyOptions& o, const std::vector<std::string>& tasks) {
  return {{"lengths", o.lengths},
          {"tasks", tasks},
          {"bos", o.bos},
          {"per_document", o.per_document},
          {"stride", o.stride},
          {"limit", o.limit ? Json(*o.limit) : Json(nullptr)},
          {"interval", {{"level", 0.95}, {"resamples", o.resamples}}},
          {"seed", o.probe.seed},
          {"probe", {{"depths", o.probe.depths}, {"samples", o.probe.samples}, {"pairs", o.probe.pairs}}}};
}

Json facts(const Subject& subject, const Opened& opened) {
  return {{"label", subject.label},
          {"path", subject.path},
          {"variant", subject.variant},
          {"kind", opened.config.kind()},
          {"rope_base", opened.config.rope_base},
          {"training_length", opened.config.max_length},
          {"parameters", count_parameters(opened.config).total},
          {"device", opened.device},
          {"tokenizer_fingerprint", fmt::format("{:016x}", opened.tokenizer->fingerprint())}};
}

}  // namespace

Json run(const std::vector<Subject>& subjects, const StudyOptions& options) {
  check_lengths(options);
  const std::vector<std::string> tasks = wanted(options);
  std::map<std::string, TextSource> texts;
  std::vector<TextPair> lambada;
  Json study = {{"schema", "lazy.length/1"},          {"command", options.command}, {"date", options.date},
                {"config", settings(options, tasks)}, {"models", Json::array()},    {"results", Json::object()}};
  for (const std::string& task : tasks) {
    Json& result = study["results"][task] = {{"models", Json::array()}};
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

  std::map<std::string, std::vector<UnitCurve>> curves;
  for (const Subject& subject : subjects) {
    const Opened opened = subject.open();
    if (options.bos && !opened.tokenizer->bos_id())
      fail("eval", "--bos: the {} tokenizer of {} has no BOS token", opened.tokenizer->kind(), subject.path);
    study["models"].push_back(facts(subject, opened));
    for (const std::string& task : tasks) {
      const std::string title = subjects.size() > 1 ? subject.label + ": " + task : task;
      Measured measured = task == "lambada_openai" ? measure_lambada(opened, lambada, options, title)
                          : texts.contains(task)   ? measure_text(opened, texts[task], options, title)
                                                   : measure_probe(opened, task, options, title);
      if (measured.entry["lengths"].empty())
        fail("eval", "{}: no length is left: {}", title, measured.entry["skipped"][0]["why"].get<std::string>());
      study["results"][task]["models"].push_back(std::move(measured.entry));
      curves[task].push_back(std::move(measured.curve));
    }
  }
  for (const std::string& task : tasks) {
    if (task == "passkey" || task == "recall") continue;
    Json& comparisons = study["results"][task]["change_against_first"] = Json::array();
    for (size_t s = 1; s < subjects.size(); ++s) {
      if (Json rows = compare_change(curves[task][0], curves[task][s], options); !rows.empty()) {
        comparisons.push_back({{"model", s}, {"lengths", rows}});
      }
    }
  }
  return study;
}

}  // namespace lazy::eval::length
