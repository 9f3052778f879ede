#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/clock.h"
#include "core/error.h"
#include "eval/encode.h"
#include "eval/prepare.h"
#include "eval/python_text.h"
#include "eval/score.h"
#include "eval/windows.h"
#include "model/tokenizer_match.h"

namespace lazy::eval {
namespace {

int64_t window_length(const LanguageModel& model, const EvalOptions& options) {
  return options.max_length > 0 ? options.max_length : model.config().max_length;
}

struct Totals {
  double log_likelihood = 0;
  int64_t tokens = 0, words = 0, bytes = 0;
};

ScoreOptions score_options(const EvalOptions& options, const char* title) {
  ScoreOptions how = options.score;
  how.title = options.progress ? title : "";
  return how;
}

double per(const Totals& totals, int64_t units) { return -totals.log_likelihood / static_cast<double>(units); }

}  // namespace

TaskResult evaluate_corpus(LanguageModel& model, const std::filesystem::path& corpus, const std::string& split,
                           const EvalOptions& options) {
  const auto begin = Clock::now();
  SequenceOptions how;
  how.length = window_length(model, options);
  how.bos_per_sequence = options.bos;
  how.shuffle = false;
  const Sequences sequences(corpus, split, how);
  check_tokenizer(model.config(), sequences.tokenizer_fingerprint(), sequences.vocab_size(), corpus.string());
  const int64_t available = sequences.size(), count = limited(available, options.limit);
  if (count == 0)
    fail("eval", "{}: the {} split has no sequence of {} tokens; try --max-length with less", corpus.string(), split,
         how.length);
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
                         const std::string& source, const EvalOptions& options) {
  const auto begin = Clock::now();
  if (text.empty()) fail("eval", "{}: expected text, found an empty file", source);
  const TextEncoder encoder(tokenizer, options.bos);
  const std::vector<int32_t> ids = encoder.encode(text);
  Totals totals{0, static_cast<int64_t>(ids.size()), python_word_count(text), static_cast<int64_t>(text.size())};
  const auto windows = rolling_windows(ids, encoder.prefix(), window_length(model, options));
  for (const Score& s : score(model, windows, score_options(options, "held-out text")))
    totals.log_likelihood += s.log_likelihood;
  TaskResult result{.name = "heldout", .original = 1, .effective = 1, .seconds = seconds_since(begin)};
  const double loss = per(totals, totals.tokens);
  result.metrics = {{"loss", loss},
                    {"bits_per_byte", per(totals, totals.bytes) / std::numbers::ln2},
                    {"perplexity", std::exp(loss)},
                    {"byte_perplexity", std::exp(per(totals, totals.bytes))},
                    {"word_perplexity", std::exp(per(totals, totals.words))}};
  result.config = {{"task", "heldout"},
                   {"text", source},
                   {"max_length", window_length(model, options)},
                   {"tokens", totals.tokens},
                   {"words", totals.words},
                   {"bytes", totals.bytes},
                   {"output_type", "loglikelihood_rolling"}};
  return result;
}

}  // namespace lazy::eval
