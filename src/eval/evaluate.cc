#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <numbers>
#include <span>

#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "data/sequences.h"
#include "eval/python.h"
#include "model/config.h"
#include "model/language_model.h"

namespace lazy::eval {

namespace {

int64_t window_length(const LanguageModel& model, const HeldoutOptions& options) {
  return options.max_length > 0 ? options.max_length : model.config().max_length;
}

// Sums over the scored text: log-likelihood in nats, and numbers of tokens, words and bytes.
struct Totals {
  double log_likelihood = 0;
  int64_t tokens = 0, words = 0, bytes = 0;
};

ScoreOptions score_options(const HeldoutOptions& options, const char* title) {
  ScoreOptions how = options.score;
  how.share_prefixes = !options.bos_every_window;
  how.title = options.progress ? title : "";
  return how;
}

// Returns the negative log-likelihood per token, word or byte.
double per(const Totals& totals, int64_t units) { return -totals.log_likelihood / static_cast<double>(units); }

// Returns the part of the text that --limit keeps, which ends before the tokens `rest`.
std::string text_before(const Tokenizer& tokenizer, const std::string& text, const std::string& source,
                        std::span<const int32_t> rest) {
  std::string end;
  for (const int32_t id : rest) end += tokenizer.piece(id);
  if (!text.ends_with(end)) {
    fail("eval",
         "{}: --limit: the {} tokenizer changes the text, so the words and bytes of a part cannot be counted; "
         "shorten the file instead",
         source, tokenizer.kind());
  }
  return text.substr(0, text.size() - end.size());
}

}  // namespace

TaskResult evaluate_corpus(LanguageModel& model, const std::filesystem::path& corpus, const std::string& split,
                           const HeldoutOptions& options) {
  const auto begin = Clock::now();
  SequenceOptions how;
  how.length = window_length(model, options);
  how.bos_per_sequence = options.bos || options.bos_every_window;
  how.shuffle = false;
  const Sequences sequences(corpus, split, how);
  check_corpus(model.config(), sequences.tokenizer_fingerprint(), sequences.vocab_size(), corpus.string());
  const int64_t available = sequences.size(), count = apply_limit(available, options.limit);
  if (count == 0)
    fail("eval", "{}: the {} split does not contain a sequence of {} tokens; try a smaller --max-length",
         corpus.string(), split, how.length);
  std::vector<Window> windows;
  std::vector<int64_t> ids(static_cast<size_t>(how.length));
  for (int64_t i = 0; i < count; ++i) {
    sequences.read(i, ids.data());
    windows.push_back({{ids.begin(), ids.end() - 1}, {ids.begin() + 1, ids.end()}});
  }
  Totals totals;
  for (const Score& s : score(model, windows, score_options(options, "held-out loss")))
    totals.log_likelihood += s.log_likelihood;
  totals.tokens = count * (how.length - 1);
  TaskResult result{.name = "heldout", .original = available, .effective = count, .seconds = seconds_since(begin)};
  const double loss = per(totals, totals.tokens);
  result.metrics = {{"loss", loss},
                    {"bits_per_byte", loss / std::numbers::ln2 / sequences.bytes_per_token()},
                    {"perplexity", std::exp(loss)}};
  result.config = {{"task", "heldout"},    {"corpus", corpus.string()}, {"split", split},
                   {"length", how.length}, {"tokens", totals.tokens},   {"output_type", "loglikelihood"}};
  return result;
}

TaskResult evaluate_text(LanguageModel& model, const Tokenizer& tokenizer, const std::string& text,
                         const std::string& source, const HeldoutOptions& options) {
  const auto begin = Clock::now();
  if (text.empty()) fail("eval", "{}: expected text, found an empty file", source);
  if (options.bos_every_window) require_bos(tokenizer);
  const TextEncoder encoder(tokenizer, options.bos && !options.bos_every_window);
  const std::vector<int32_t> ids = encoder.encode(text);
  const int64_t length = window_length(model, options);
  auto windows = options.bos_every_window ? rolling_windows_with_bos(ids, encoder.prefix(), length)
                                          : rolling_windows(ids, encoder.prefix(), length);
  windows.resize(static_cast<size_t>(apply_limit(static_cast<int64_t>(windows.size()), options.limit)));
  Totals totals;
  for (const Window& window : windows) totals.tokens += static_cast<int64_t>(window.targets.size());
  const std::string scored = text_before(tokenizer, text, source, std::span(ids).subspan(totals.tokens));
  totals.words = python_word_count(scored);
  totals.bytes = static_cast<int64_t>(scored.size());
  for (const Score& s : score(model, windows, score_options(options, "held-out text")))
    totals.log_likelihood += s.log_likelihood;
  TaskResult result{.name = "heldout", .original = 1, .effective = 1, .seconds = seconds_since(begin)};
  const double loss = per(totals, totals.tokens);
  result.metrics = {{"loss", loss},
                    {"bits_per_byte", per(totals, totals.bytes) / std::numbers::ln2},
                    {"perplexity", std::exp(loss)},
                    {"byte_perplexity", std::exp(per(totals, totals.bytes))},
                    {"word_perplexity", std::exp(per(totals, totals.words))}};
  result.config = {{"task", "heldout"},       {"text", source},
                   {"max_length", length},    {"windows", windows.size()},
                   {"tokens", totals.tokens}, {"words", totals.words},
                   {"bytes", totals.bytes},   {"output_type", "loglikelihood_rolling"}};
  return result;
}

namespace {

// Returns the definition of a task as JSON. Where lm-evaluation-harness has the same setting, the key has its name.
Json config_of(const Task& task, int64_t num_fewshot, const std::filesystem::path& data) {
  Json config = {{"task", task.name},     {"description", task.prefix},    {"dataset_path", task.data.hub},
                 {"data", data.string()}, {"test_split", task.data.split}, {"fewshot_split", task.data.fewshot_split}};
  if (task.output_type == OutputType::loglikelihood_rolling) {
    config["doc_to_target"] = task.text.source();
  } else if (task.output_type == OutputType::loglikelihood) {
    config["doc_to_text"] = task.context.source();
    config["doc_to_target"] = task.continuation.source();
  } else {
    config["doc_to_text"] = task.contexts.empty() ? Json(task.context.source()) : task.contexts.source();
    config["doc_to_target"] = task.label.source();
    config["doc_to_choice"] = task.contexts.empty() ? task.choices.source() : Json(task.continuation.source());
  }
  config["target_delimiter"] = task.target_delimiter;
  config["fewshot_delimiter"] = task.fewshot_delimiter;
  config["num_fewshot"] = num_fewshot;
  config["metric_list"] = Json::array();
  for (const std::string& metric : task.metrics) config["metric_list"].push_back({{"metric", metric}});
  config["output_type"] = name(task.output_type);
  config["repeats"] = 1;
  config["metadata"] = {{"version", task.version}, {"file", task.origin}, {"about", task.description}};
  return config;
}

// Accumulated results of the documents of the task that is being evaluated.
struct TaskProgress {
  std::vector<DocumentResult> documents;
  std::string samples, hashes;
  double seconds = 0;
};

void add_results(const Task& task, const RequestChunk& chunk, const std::vector<Score>& scores, bool log_samples,
                 TaskProgress& progress) {
  size_t begin = 0;
  for (size_t i = 0; i < chunk.questions.size(); ++i) {
    const Question& question = chunk.questions[i];
    std::vector<Score> own(scores.begin() + static_cast<int64_t>(begin),
                           scores.begin() + static_cast<int64_t>(chunk.ends[i]));
    begin = chunk.ends[i];
    if (task.output_type == OutputType::loglikelihood_rolling) {  // sum the scores of all windows of a text
      Score sum;
      for (const Score& s : own) sum.log_likelihood += s.log_likelihood;
      own = {sum};
    }
    std::vector<double> values = document_metrics(task, question, own);
    if (log_samples) {
      const Json record =
          sample_record(task, chunk.first + static_cast<int64_t>(i), chunk.rows[i], question, own, values);
      progress.samples += record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
      for (const char* hash : {"doc_hash", "prompt_hash", "target_hash"})
        progress.hashes += record[hash].get<std::string>();
    }
    progress.documents.push_back({std::move(values), question.words, question.bytes,
                                  static_cast<int64_t>(question.choices.size()), question.label});
  }
}

TaskResult finish(const Task& task, TaskProgress progress, int64_t original, int64_t num_fewshot,
                  const std::filesystem::path& data) {
  TaskResult result;
  result.name = task.name;
  result.version = task.version;
  result.metrics = aggregate(task, progress.documents);
  result.original = original;
  result.effective = static_cast<int64_t>(progress.documents.size());
  result.num_fewshot = task.output_type == OutputType::loglikelihood_rolling ? 0 : num_fewshot;
  result.config = config_of(task, result.num_fewshot, data);
  result.seconds = progress.seconds;
  result.chance = chance_of(task, progress.documents);
  result.headline = task.headline;
  if (!progress.samples.empty()) result.task_hash = sha256_hex(progress.hashes);
  result.samples = std::move(progress.samples);
  return result;
}

}  // namespace

std::vector<TaskResult> evaluate_tasks(LanguageModel& model, const Tokenizer& tokenizer, const std::vector<Task>& tasks,
                                       const std::filesystem::path& data, TaskOptions options) {
  if (options.prompt.max_length <= 0) options.prompt.max_length = model.config().max_length;
  std::vector<TaskResult> results;
  // Results of finished tasks, which are aggregated asynchronously. The first results.size() futures have been read.
  std::vector<std::future<TaskResult>> finishing;
  const auto collect = [&](bool wait) {
    for (; results.size() < finishing.size(); options.on_result ? options.on_result(results.back()) : void()) {
      auto& next = finishing[results.size()];
      if (!wait && next.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
      results.push_back(next.get());
    }
  };
  RequestPrefetcher prefetcher(tasks, data, tokenizer, options.prompt);
  TaskProgress progress;
  std::future<void> adding;  // asynchronous task that adds the results of the previous chunk
  RequestChunk chunk;
  try {
    for (auto begin = Clock::now(); prefetcher.next(chunk);) {
      collect(false);
      const Task& task = tasks[chunk.task];
      const int64_t documents = chunk.first + static_cast<int64_t>(chunk.questions.size());
      ScoreOptions how = options.score;
      how.title = !options.progress                ? ""
                  : chunk.first == 0 && chunk.last ? task.name
                                                   : fmt::format("{} {} of {}", task.name, documents, chunk.planned);
      how.share_prefixes = chunk.windows.empty() || !options.prompt.bos_every_window;
      auto scores = chunk.windows.empty() ? score(model, chunk.requests, options.prompt.max_length, how)
                                          : score(model, chunk.windows, how);
      if (adding.valid()) adding.get();
      progress.seconds += seconds_since(begin);
      begin = Clock::now();
      if (!chunk.last) {
        adding = std::async(std::launch::async, [&, chunk = std::move(chunk), scores = std::move(scores)] {
          add_results(task, chunk, scores, options.log_samples, progress);
        });
        continue;
      }
      finishing.push_back(std::async(std::launch::async, [&, chunk = std::move(chunk), scores = std::move(scores),
                                                          progress = std::move(progress)]() mutable {
        add_results(task, chunk, scores, options.log_samples, progress);
        return finish(task, std::move(progress), chunk.original, options.prompt.num_fewshot, data);
      }));
      progress = TaskProgress();
    }
  } catch (...) {
    collect(true);
    throw;
  }
  collect(true);
  return results;
}

}  // namespace lazy::eval
