#include "eval/length/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "eval/length/measurement.h"

namespace lazy::eval::length {

namespace {

constexpr std::array kSentences = {"The kettle on the stove was still warm. ", "A bus went past the corner shop. ",
                                   "Somebody had left a window open. ",        "The clock in the hall was slow. ",
                                   "Two dogs slept under the bench. ",         "Rain was expected before noon. ",
                                   "The baker swept the front step. ",         "A letter lay on the kitchen table. "};

uint64_t trial_seed(uint64_t seed, int64_t trial) {
  return Random(seed + 0x9E37 * static_cast<uint64_t>(trial)).next();
}

Window window_of_prompt(const PasskeyPrompt& prompt, const Tokenizer& tokenizer, std::optional<int32_t> bos) {
  std::vector<int32_t> ids = tokenizer.encode(prompt.text + prompt.answer);
  const size_t context = tokenizer.encode(prompt.text).size();
  if (context == 0 || context >= ids.size())
    fail("eval", "passkey: the {} tokenizer encodes '{}' as zero tokens", tokenizer.kind(), prompt.answer);
  Window window{{}, {ids.begin() + static_cast<int64_t>(context), ids.end()}};
  if (bos) window.input.push_back(*bos);
  window.input.insert(window.input.end(), ids.begin(), ids.end() - 1);
  return window;
}

int64_t prompt_tokens(int64_t sentences, double depth, uint64_t seed, const Tokenizer& tokenizer,
                      std::optional<int32_t> bos) {
  return static_cast<int64_t>(window_of_prompt(passkey_prompt(sentences, depth, seed), tokenizer, bos).input.size());
}

// Returns the maximum number of sentences for which the prompt fits into `length` tokens if the pass key is at the
// beginning. With the key at other depths, the prompt may be a few tokens longer; the caller then removes sentences.
int64_t most_sentences(int64_t length, uint64_t seed, const Tokenizer& tokenizer, std::optional<int32_t> bos) {
  int64_t fits = 0, too_many = 1;
  while (prompt_tokens(too_many, 0, seed, tokenizer, bos) <= length) fits = too_many, too_many *= 2;
  while (too_many - fits > 1) {
    const int64_t middle = (fits + too_many) / 2;
    (prompt_tokens(middle, 0, seed, tokenizer, bos) <= length ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace

PasskeyPrompt passkey_prompt(int64_t sentences, double depth, uint64_t seed, bool planted) {
  Random random(seed);
  const std::string key = std::to_string(10000 + random.below(90000));
  const auto before = static_cast<int64_t>(std::lround(depth * static_cast<double>(sentences)));
  std::string text = "A pass key is written somewhere in these notes. Keep it in mind.\n\n";
  for (int64_t i = 0; i <= sentences; ++i) {
    if (i == before && planted) text += "The pass key is " + key + ". ";
    if (i < sentences) text += kSentences[random.below(kSentences.size())];
  }
  text.pop_back();
  return {text + "\n\nWhat is the pass key?\nThe pass key is", " " + key};
}

int64_t min_passkey_length(const Tokenizer& tokenizer, const SyntheticOptions& options) {
  int64_t most = 0;
  for (int64_t trial = 0; trial < options.samples; ++trial) {
    most = std::max(most, prompt_tokens(0, 0, trial_seed(options.seed, trial), tokenizer, options.bos));
  }
  return most;
}

std::vector<DepthResult> evaluate_passkey(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                                          const SyntheticOptions& options, const std::string& title) {
  if (const int64_t least = min_passkey_length(tokenizer, options); length < least) {
    fail("eval", "passkey: expected a length of at least {} (the question alone), found {}", least, length);
  }
  std::vector<Window> windows;
  for (int64_t trial = 0; trial < options.samples; ++trial) {
    const uint64_t seed = trial_seed(options.seed, trial);
    const int64_t most = most_sentences(length, seed, tokenizer, options.bos);
    for (const double depth : options.depths) {
      int64_t sentences = most;
      while (sentences > 0 && prompt_tokens(sentences, depth, seed, tokenizer, options.bos) > length) --sentences;
      windows.push_back(window_of_prompt(passkey_prompt(sentences, depth, seed), tokenizer, options.bos));
    }
    windows.push_back(window_of_prompt(passkey_prompt(most, 0, seed, false), tokenizer, options.bos));
  }
  const std::vector<Score> scores = scorer(windows, title);
  std::vector<DepthResult> results;
  const size_t stride = options.depths.size() + 1;
  for (size_t d = 0; d < options.depths.size(); ++d) {
    DepthResult result{.depth = options.depths[d], .trials = options.samples, .log_likelihood_absent = 0.0};
    for (size_t at = d, absent = stride - 1; at < windows.size(); at += stride, absent += stride) {
      result.exact += scores[at].greedy;
      result.log_likelihood += scores[at].log_likelihood / static_cast<double>(options.samples);
      *result.log_likelihood_absent += scores[absent].log_likelihood / static_cast<double>(options.samples);
      result.input_tokens += static_cast<double>(windows[at].input.size()) / static_cast<double>(options.samples);
    }
    results.push_back(result);
  }
  return results;
}

std::vector<int32_t> recall_vocabulary(const Tokenizer& tokenizer, int64_t pairs) {
  std::vector<int32_t> words, others;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id == tokenizer.bos_id() || id == tokenizer.eos_id() || tokenizer.is_special(id)) continue;
    const std::string piece = tokenizer.piece(id);
    if (piece.empty()) continue;
    others.push_back(id);
    const bool word = piece.size() > 2 && piece[0] == ' ' &&
                      std::all_of(piece.begin() + 1, piece.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
    if (word) words.push_back(id);
  }
  // At least 4 * pairs tokens are needed: 2 * pairs tokens are keys and values, and the same number of tokens is left
  // for random filler.
  const auto enough = static_cast<size_t>(4 * pairs);
  if (words.size() >= enough) return words;
  if (others.size() >= enough) return others;
  fail("eval", "recall: {} pairs need {} tokens, but the {} tokenizer has {}", pairs, enough, tokenizer.kind(),
       others.size());
}

int64_t min_recall_length(const SyntheticOptions& options) { return 4 * options.pairs - 1 + (options.bos ? 1 : 0); }

RecallSequence recall_sequence(const std::vector<int32_t>& vocabulary, int64_t length, int64_t pairs, double depth,
                               uint64_t seed, std::optional<int32_t> bos) {
  Random random(seed);
  std::vector<int32_t> tokens = vocabulary;
  random.shuffle(std::span(tokens));
  const auto n = static_cast<size_t>(pairs);
  const std::span<const int32_t> keys(tokens.data(), n), values(tokens.data() + n, n);
  const std::span<const int32_t> filler(tokens.data() + 2 * n, tokens.size() - 2 * n);
  const int64_t filler_count = length + 1 - (bos ? 1 : 0) - 4 * pairs;
  const auto before = static_cast<int64_t>(std::lround(depth * static_cast<double>(filler_count)));

  std::vector<int32_t> ids;
  if (bos) ids.push_back(*bos);
  for (int64_t i = 0; i <= filler_count; ++i) {
    for (size_t p = 0; i == before && p < n; ++p) ids.insert(ids.end(), {keys[p], values[p]});
    if (i < filler_count) ids.push_back(filler[random.below(filler.size())]);
  }
  std::vector<size_t> order(n);
  for (size_t p = 0; p < n; ++p) order[p] = p;
  random.shuffle(std::span(order));
  RecallSequence sequence;
  for (const size_t p : order) {
    ids.insert(ids.end(), {keys[p], values[p]});
    sequence.value_targets.push_back(2 * sequence.value_targets.size());
  }
  sequence.window.targets.assign(ids.end() - static_cast<int64_t>(2 * n - 1), ids.end());
  ids.pop_back();
  sequence.window.input = std::move(ids);
  return sequence;
}

std::vector<DepthResult> evaluate_recall(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                                         const SyntheticOptions& options, const std::string& title) {
  if (const int64_t least = min_recall_length(options); length < least) {
    fail("eval", "recall: expected a length of at least {} ({} pairs and their questions), found {}", least,
         options.pairs, length);
  }
  const std::vector<int32_t> vocabulary = recall_vocabulary(tokenizer, options.pairs);
  std::vector<RecallSequence> sequences;
  std::vector<Window> windows;
  for (int64_t trial = 0; trial < options.samples; ++trial) {
    const uint64_t seed = Random(options.seed + 0x9E37 * static_cast<uint64_t>(trial)).next();
    for (const double depth : options.depths) {
      sequences.push_back(recall_sequence(vocabulary, length, options.pairs, depth, seed, options.bos));
      windows.push_back(sequences.back().window);
    }
  }
  const std::vector<Score> scores = scorer(windows, title);
  std::vector<DepthResult> results;
  for (size_t d = 0; d < options.depths.size(); ++d) {
    DepthResult result{.depth = options.depths[d],
                       .trials = options.samples * options.pairs,
                       .input_tokens = static_cast<double>(length)};
    for (size_t s = d; s < sequences.size(); s += options.depths.size()) {
      for (const size_t t : sequences[s].value_targets) {
        result.exact += scores[s].targets[t].greedy;
        result.log_likelihood += scores[s].targets[t].log_likelihood / static_cast<double>(result.trials);
      }
    }
    results.push_back(result);
  }
  return results;
}

Measurement measure_synthetic(const LoadedModel& model, const std::string& task, const LengthEvalOptions& options,
                              const std::string& title, const OnEntry& on_entry) {
  SyntheticOptions how = options.synthetic;
  if (options.bos) how.bos = model.tokenizer->bos_id();
  const bool passkey = task == "passkey";
  const int64_t least = passkey ? min_passkey_length(*model.tokenizer, how) : min_recall_length(how);
  Measurement measured{.entry = {{"lengths", Json::array()}, {"skipped", Json::array()}}, .curve = {}};
  for (const int64_t length : options.lengths) {
    if (length < least) {
      skip(measured.entry, title, length,
           fmt::format("{} needs {} tokens", passkey ? "the question alone" : "a context of these pairs", least));
      continue;
    }
    const std::string name = fmt::format("{} at {}", title, length);
    Json depths = Json::array();
    for (const DepthResult& result : passkey ? evaluate_passkey(model.scorer, *model.tokenizer, length, how, name)
                                             : evaluate_recall(model.scorer, *model.tokenizer, length, how, name)) {
      if (!std::isfinite(result.log_likelihood))
        log::warn("{}: depth {}: the log-likelihood is not finite", name, result.depth);
      Json row = {{"depth", result.depth},
                  {"trials", result.trials},
                  {"exact", double(result.exact) / double(result.trials)},
                  {"exact_interval", to_json(wilson(double(result.exact), double(result.trials)))},
                  {"log_likelihood", result.log_likelihood}};
      if (result.log_likelihood_absent) row["log_likelihood_absent"] = *result.log_likelihood_absent;
      row["input_tokens"] = result.input_tokens;
      depths.push_back(row);
    }
    measured.entry["lengths"].push_back({{"length", length}, {"depths", depths}});
    on_entry(measured.entry);
  }
  return measured;
}

}  // namespace lazy::eval::length
