#include "eval/length/lambada.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "eval/data/rows.h"
#include "eval/encode.h"
#include "eval/prepare.h"

namespace lazy::eval::length {
namespace {

size_t room(const LambadaItem& item, std::span<const int32_t> separator) { return separator.size() + item.ids.size(); }

}  // namespace

std::vector<TextPair> load_lambada(const std::filesystem::path& data, const std::optional<double>& limit) {
  const Task task = find_task("lambada_openai");
  std::vector<Row> rows = read_rows(task, data);
  rows.resize(static_cast<size_t>(limited(static_cast<int64_t>(rows.size()), limit)));
  std::vector<TextPair> pairs;
  for (const Row& row : rows) {
    pairs.push_back(make_question(task, row, "").pairs.at(0));
    if (pairs.back().context.empty())
      fail("eval", "{}: expected words before the last one, found '{}'", row.where, pairs.back().continuation);
  }
  return pairs;
}

std::vector<LambadaItem> tokenize_lambada(const std::vector<TextPair>& pairs, const Tokenizer& tokenizer) {
  TextEncoder encoder(tokenizer, false);
  std::vector<LambadaItem> items;
  for (const TextPair& pair : pairs) {
    const Request request = encoder.encode_pair(pair.context, pair.continuation);
    LambadaItem item{request.context, request.context.size()};
    item.ids.insert(item.ids.end(), request.continuation.begin(), request.continuation.end());
    if (item.context == 0 || item.context == item.ids.size()) {
      fail("eval", "lambada_openai: expected a context and a last word of a token at least, found '{}' and '{}'",
           pair.context, pair.continuation);
    }
    items.push_back(std::move(item));
  }
  return items;
}

int64_t lambada_shortest(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                         std::optional<int32_t> bos) {
  size_t most = 0;
  for (const LambadaItem& item : items) most = std::max(most, room(item, separator));
  return static_cast<int64_t>(most) - 1 + (bos ? 1 : 0);
}

std::vector<LambadaStream> lambada_streams(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                                           std::optional<int32_t> bos, int64_t length) {
  if (separator.empty()) fail("eval", "lambada_openai: expected a separator of one token at least, found none");
  if (const int64_t least = lambada_shortest(items, separator, bos); length < least) {
    fail("eval", "lambada_openai: expected a length of {} at least (the longest item), found {}", least, length);
  }
  std::vector<LambadaStream> streams;
  for (size_t i = 0; i < items.size();) {
    LambadaStream stream{.first_item = i};
    std::vector<int32_t> ids;
    if (bos) ids.push_back(*bos);
    const size_t before = ids.size() + separator.size();
    // The last token is a target only: length + 1 tokens make a window of `length`.
    for (; i < items.size() && ids.size() + room(items[i], separator) <= static_cast<size_t>(length) + 1; ++i) {
      ids.insert(ids.end(), separator.begin(), separator.end());
      stream.starts.push_back(ids.size() - before);
      ids.insert(ids.end(), items[i].ids.begin(), items[i].ids.end());
    }
    stream.window.targets.assign(ids.begin() + static_cast<int64_t>(before), ids.end());
    ids.pop_back();
    stream.window.input = std::move(ids);
    streams.push_back(std::move(stream));
  }
  return streams;
}

LambadaSums score_lambada(const Scorer& scorer, std::span<const LambadaItem> items, std::span<const int32_t> separator,
                          std::optional<int32_t> bos, int64_t length, const std::string& title) {
  const auto streams = lambada_streams(items, separator, bos, length);
  std::vector<Window> windows;
  for (const LambadaStream& stream : streams) windows.push_back(stream.window);
  const std::vector<Score> scores = scorer(windows, title);
  LambadaSums sums{.streams = static_cast<int64_t>(streams.size())};
  for (size_t s = 0; s < streams.size(); ++s) {
    for (size_t k = 0; k < streams[s].starts.size(); ++k) {
      const LambadaItem& item = items[streams[s].first_item + k];
      double loss = 0, word = 0;
      bool correct = true;
      for (size_t t = 0; t < item.ids.size(); ++t) {
        const TargetScore& target = scores[s].targets[streams[s].starts[k] + t];
        if (!std::isfinite(target.log_likelihood)) ++sums.not_finite;
        loss -= target.log_likelihood;
        if (t < item.context) continue;
        word -= target.log_likelihood;
        correct = correct && target.greedy;
      }
      sums.loss.push_back(loss);
      sums.tokens.push_back(static_cast<double>(item.ids.size()));
      sums.word_loss.push_back(word);
      sums.word_correct.push_back(correct ? 1 : 0);
    }
  }
  return sums;
}

LambadaSums score_lambada_standard(const Scorer& scorer, std::span<const LambadaItem> items, std::optional<int32_t> bos,
                                   int64_t max_length, const std::string& title) {
  std::vector<Window> windows;
  for (const LambadaItem& item : items) {
    const auto word = item.ids.begin() + static_cast<int64_t>(item.context);
    Request request{{item.ids.begin(), word}, {word, item.ids.end()}};
    if (bos) request.context.insert(request.context.begin(), *bos);
    windows.push_back(window_of(request, max_length));
  }
  LambadaSums sums;
  for (const Score& score : scorer(windows, title)) {
    if (!std::isfinite(score.log_likelihood)) ++sums.not_finite;
    sums.word_loss.push_back(-score.log_likelihood);
    sums.word_correct.push_back(score.greedy ? 1 : 0);
  }
  return sums;
}

}  // namespace lazy::eval::length
