#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "eval/length/probe.h"

namespace lazy::eval::length {

std::vector<int32_t> recall_vocabulary(const Tokenizer& tokenizer, int64_t pairs) {
  std::vector<int32_t> words, others;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id == tokenizer.bos_id() || id == tokenizer.eos_id()) continue;
    const std::string piece = tokenizer.piece(id);
    if (piece.empty()) continue;  // a control token
    others.push_back(id);
    const bool word = piece.size() > 2 && piece[0] == ' ' &&
                      std::all_of(piece.begin() + 1, piece.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
    if (word) words.push_back(id);
  }
  // As many for the rest of the sequence as for the pairs, so that it is no single token's repetition.
  const auto enough = static_cast<size_t>(4 * pairs);
  if (words.size() >= enough) return words;
  if (others.size() >= enough) return others;
  fail("eval", "recall: {} pairs need {} tokens, the {} tokenizer has {}", pairs, enough, tokenizer.kind(),
       others.size());
}

int64_t recall_shortest(const ProbeOptions& options) { return 4 * options.pairs - 1 + (options.bos ? 1 : 0); }

RecallSequence recall_sequence(const std::vector<int32_t>& vocabulary, int64_t length, int64_t pairs, double depth,
                               uint64_t seed, std::optional<int32_t> bos) {
  Random random(seed);
  std::vector<int32_t> tokens = vocabulary;
  random.shuffle(std::span(tokens));
  const auto n = static_cast<size_t>(pairs);
  const std::span<const int32_t> keys(tokens.data(), n), values(tokens.data() + n, n);
  const std::span<const int32_t> rest(tokens.data() + 2 * n, tokens.size() - 2 * n);
  const int64_t filler = length + 1 - (bos ? 1 : 0) - 4 * pairs;
  const auto before = static_cast<int64_t>(std::lround(depth * static_cast<double>(filler)));

  std::vector<int32_t> ids;
  if (bos) ids.push_back(*bos);
  for (int64_t i = 0; i <= filler; ++i) {
    for (size_t p = 0; i == before && p < n; ++p) ids.insert(ids.end(), {keys[p], values[p]});
    if (i < filler) ids.push_back(rest[random.below(rest.size())]);
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

std::vector<ProbeCell> recall(const Scorer& scorer, const Tokenizer& tokenizer, int64_t length,
                              const ProbeOptions& options, const std::string& title) {
  if (const int64_t least = recall_shortest(options); length < least) {
    fail("eval", "recall: expected a length of {} at least ({} pairs and their questions), found {}", least,
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
  std::vector<ProbeCell> cells;
  for (size_t d = 0; d < options.depths.size(); ++d) {
    ProbeCell cell{.depth = options.depths[d],
                   .trials = options.samples * options.pairs,
                   .input_tokens = static_cast<double>(length)};
    for (size_t s = d; s < sequences.size(); s += options.depths.size()) {
      for (const size_t t : sequences[s].value_targets) {
        cell.exact += scores[s].targets[t].greedy;
        cell.log_likelihood += scores[s].targets[t].log_likelihood / static_cast<double>(cell.trials);
      }
    }
    cells.push_back(cell);
  }
  return cells;
}

}  // namespace lazy::eval::length
