#include <array>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "eval/length/probe.h"

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
    fail("eval", "passkey: the {} tokenizer makes no token of '{}'", tokenizer.kind(), prompt.answer);
  Window window{{}, {ids.begin() + static_cast<int64_t>(context), ids.end()}};
  if (bos) window.input.push_back(*bos);
  window.input.insert(window.input.end(), ids.begin(), ids.end() - 1);
  return window;
}

int64_t prompt_tokens(int64_t sentences, double depth, uint64_t seed, const Tokenizer& tokenizer,
                      std::optional<int32_t> bos) {
  return static_cast<int64_t>(window_of_prompt(passkey_prompt(sentences, depth, seed), tokenizer, bos).input.size());
}

// The most sentences that fit with the key at the beginning: a few more or less tokens elsewhere are seen to by the
// caller.
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

int64_t passkey_shortest(const Tokenizer& tokenizer, const ProbeOptions& options) {
  int64_t most = 0;
  for (int64_t trial = 0; trial < options.samples; ++trial) {
    most = std::max(most, prompt_tokens(0, 0, trial_seed(options.seed, trial), tokenizer, options.bos));
  }
  return most;
}

std::vector<ProbeCell> passkey(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                               const ProbeOptions& options, const std::string& title) {
  if (const int64_t least = passkey_shortest(tokenizer, options); length < least) {
    fail("eval", "passkey: expected a length of {} at least (the question alone), found {}", least, length);
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
  std::vector<ProbeCell> cells;
  const size_t stride = options.depths.size() + 1;
  for (size_t d = 0; d < options.depths.size(); ++d) {
    ProbeCell cell{.depth = options.depths[d], .trials = options.samples, .log_likelihood_absent = 0.0};
    for (size_t at = d, absent = stride - 1; at < windows.size(); at += stride, absent += stride) {
      cell.exact += scores[at].greedy;
      cell.log_likelihood += scores[at].log_likelihood / static_cast<double>(options.samples);
      *cell.log_likelihood_absent += scores[absent].log_likelihood / static_cast<double>(options.samples);
      cell.input_tokens += static_cast<double>(windows[at].input.size()) / static_cast<double>(options.samples);
    }
    cells.push_back(cell);
  }
  return cells;
}

}  // namespace lazy::eval::length
