#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "eval/python_text.h"
#include "eval/score.h"
#include "eval/windows.h"
#include "model/tokenizer_match.h"

namespace lazy::eval {
namespace {

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

int64_t window_length(const LanguageModel& model, const EvalOptions& options) {
  return options.max_length > 0 ? options.max_length : model.config().max_length;
}

// What the first token of a text is predicted from: BOS, or EOS for a vocabulary without one.
int32_t prefix_token(const Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos_id()) return *bos;
  if (const auto eos = tokenizer.eos_id()) return *eos;
  fail("eval", "the {} tokenizer has neither a BOS nor an EOS token to predict a text's first token from", tokenizer.kind());
}

struct Totals {
  double log_likelihood = 0;
  int64_t tokens = 0, words = 0, bytes = 0;
};

Totals score_documents(LanguageModel& model, const Tokenizer& tokenizer, const std::vector<Document>& documents, const EvalOptions& options,
                       const std::string& title) {
  std::vector<Window> windows;
  Totals totals;
  const int32_t prefix = prefix_token(tokenizer);
  for (const Document& document : documents) {
    std::vector<int32_t> ids = tokenizer.encode(document.text);
    if (options.bos) {
      if (!tokenizer.bos_id()) fail("eval", "--bos: the {} tokenizer has no BOS token", tokenizer.kind());
      ids.insert(ids.begin(), *tokenizer.bos_id());
    }
    for (Window& window : rolling_windows(ids, prefix, window_length(model, options))) windows.push_back(std::move(window));
    totals.tokens += static_cast<int64_t>(ids.size());
    totals.words += document.words;
    totals.bytes += document.bytes;
  }
  for (const Score& s : score(model, windows, {.batch_size = options.batch_size, .title = options.progress ? title : "", .cache = options.cache})) totals.log_likelihood += s.log_likelihood;
  return totals;
}

double per(const Totals& totals, int64_t units) { return -totals.log_likelihood / static_cast<double>(units); }

}  // namespace

TaskResult evaluate_corpus(LanguageModel& model, const std::filesystem::path& corpus, const std::string& split, const EvalOptions& options) {
  const Clock clock;
  SequenceOptions how;
  how.length = window_length(model, options);
  how.bos_per_sequence = options.bos;
  how.shuffle = false;
  const Sequences sequences(corpus, split, how);
  check_tokenizer(model.config(), sequences.tokenizer_fingerprint(), sequences.vocab_size(), corpus.string());
  const int64_t available = sequences.size(), count = options.limit ? std::min(available, *options.limit) : available;
  if (count == 0) fail("eval", "{}: the {} split has no sequence of {} tokens; try --max-length with less", corpus.string(), split, how.length);
  std::vector<Window> windows;
  std::vector<int64_t> ids(static_cast<size_t>(how.length));
  for (int64_t i = 0; i < count; ++i) {
    sequences.read(i, ids.data());
    windows.push_back({{ids.begin(), ids.end() - 1}, {ids.begin() + 1, ids.end()}});
  }
  Totals totals;
  for (const Score& s : score(model, windows, {.batch_size = options.batch_size, .title = options.progress ? "held-out loss" : "", .cache = options.cache})) totals.log_likelihood += s.log_likelihood;
  totals.tokens = count * (how.length - 1);
  TaskResult result{.name = "heldout", .original = available, .effective = count, .seconds = clock.seconds()};
  const double loss = per(totals, totals.tokens);
  result.metrics = {{"loss", loss}, {"bits_per_byte", loss / std::numbers::ln2 / sequences.bytes_per_token()}, {"perplexity", std::exp(loss)}};
  result.config = {{"task", "heldout"}, {"corpus", corpus.string()}, {"split", split}, {"length", how.length}, {"tokens", totals.tokens},
                   {"output_type", "loglikelihood"}};
  return result;
}

TaskResult evaluate_text(LanguageModel& model, const Tokenizer& tokenizer, const std::string& text, const std::string& source,
                         const EvalOptions& options) {
  const Clock clock;
  const Document document{text, python_word_count(text), static_cast<int64_t>(text.size())};
  if (text.empty()) fail("eval", "{}: expected text, found an empty file", source);
  const Totals totals = score_documents(model, tokenizer, {document}, options, "held-out text");
  TaskResult result{.name = "heldout", .original = 1, .effective = 1, .seconds = clock.seconds()};
  const double loss = per(totals, totals.tokens);
  result.metrics = {{"loss", loss},
                    {"bits_per_byte", per(totals, totals.bytes) / std::numbers::ln2},
                    {"perplexity", std::exp(loss)},
                    {"byte_perplexity", std::exp(per(totals, totals.bytes))},
                    {"word_perplexity", std::exp(per(totals, totals.words))}};
  result.config = {{"task", "heldout"}, {"text", source}, {"max_length", window_length(model, options)}, {"tokens", totals.tokens},
                   {"words", totals.words}, {"bytes", totals.bytes}, {"output_type", "loglikelihood_rolling"}};
  return result;
}

TaskResult evaluate_task(LanguageModel& model, const Tokenizer& tokenizer, const Task& task, const std::filesystem::path& data,
                         const EvalOptions& options) {
  const Clock clock;
  std::vector<Document> documents = load_documents(task, data);
  TaskResult result{.name = task.name, .version = task.version};
  result.original = static_cast<int64_t>(documents.size());
  if (options.limit && *options.limit < result.original) documents.resize(static_cast<size_t>(*options.limit));
  result.effective = static_cast<int64_t>(documents.size());
  const Totals totals = score_documents(model, tokenizer, documents, options, task.name);
  for (const std::string& metric : task.metrics) {
    const double value = metric == "word_perplexity"   ? std::exp(per(totals, totals.words))
                         : metric == "byte_perplexity" ? std::exp(per(totals, totals.bytes))
                         : metric == "bits_per_byte"   ? per(totals, totals.bytes) / std::numbers::ln2
                                                       : NAN;
    if (std::isnan(value) && std::isfinite(totals.log_likelihood)) fail("eval", "task {}: unknown metric '{}'", task.name, metric);
    result.metrics.push_back({metric, value});
  }
  result.config = {{"task", task.name}, {"description", task.description}, {"data", data.string()}, {"output_type", "loglikelihood_rolling"},
                   {"max_length", window_length(model, options)}, {"tokens", totals.tokens}, {"words", totals.words}, {"bytes", totals.bytes}};
  result.seconds = clock.seconds();
  return result;
}

}  // namespace lazy::eval
