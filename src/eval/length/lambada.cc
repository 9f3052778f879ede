#include "eval/length/lambada.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "eval/length/measurement.h"
#include "eval/tasks/documents.h"

namespace lazy::eval::length {

namespace {

// Returns the number of tokens that an item and the separator before it have in a stream.
size_t stream_tokens(const LambadaItem& item, std::span<const int32_t> separator) {
  return separator.size() + item.ids.size();
}

}  // namespace

std::vector<TextPair> load_lambada(const std::filesystem::path& data, const std::optional<double>& limit) {
  const Task task = find_task("lambada_openai");
  std::vector<TaskDocument> rows = read_rows(task, data);
  rows.resize(static_cast<size_t>(apply_limit(static_cast<int64_t>(rows.size()), limit)));
  std::vector<TextPair> pairs;
  for (const TaskDocument& row : rows) {
    pairs.push_back(make_question(task, row, "").pairs.at(0));
    if (pairs.back().context.empty())
      fail("eval", "{}: expected at least one word before the last word, found '{}'", row.where,
           pairs.back().continuation);
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
      fail("eval", "lambada_openai: expected a context and a last word of at least one token each, found '{}' and '{}'",
           pair.context, pair.continuation);
    }
    items.push_back(std::move(item));
  }
  return items;
}

int64_t min_lambada_length(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                           std::optional<int32_t> bos) {
  size_t most = 0;
  for (const LambadaItem& item : items) most = std::max(most, stream_tokens(item, separator));
  return static_cast<int64_t>(most) - 1 + (bos ? 1 : 0);
}

std::vector<LambadaStream> lambada_streams(std::span<const LambadaItem> items, std::span<const int32_t> separator,
                                           std::optional<int32_t> bos, int64_t length) {
  if (separator.empty()) fail("eval", "lambada_openai: expected a separator of at least one token, found none");
  if (const int64_t least = min_lambada_length(items, separator, bos); length < least) {
    fail("eval", "lambada_openai: expected a length of at least {} (the longest item), found {}", least, length);
  }
  std::vector<LambadaStream> streams;
  for (size_t i = 0; i < items.size();) {
    LambadaStream stream{.first_item = i};
    std::vector<int32_t> ids;
    if (bos) ids.push_back(*bos);
    const size_t before = ids.size() + separator.size();
    // The last token is only a target, so a window of `length` input tokens needs length + 1 tokens.
    for (; i < items.size() && ids.size() + stream_tokens(items[i], separator) <= static_cast<size_t>(length) + 1;
         ++i) {
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

namespace {

constexpr const char* kSeparator = "\n\n";

// Adds the accuracy and the perplexity of the last words to `row`. As in the LAMBADA benchmark, the perplexity is exp
// of the mean loss of a last word.
void add_words(Json& row, const LambadaSums& sums, const Bootstrap& bootstrap) {
  const double n = static_cast<double>(sums.word_loss.size());
  const std::vector<double> ones(sums.word_loss.size(), 1.0);
  row["word_accuracy"] = std::accumulate(sums.word_correct.begin(), sums.word_correct.end(), 0.0) / n;
  row["word_accuracy_interval"] = to_json(bootstrap.ratio(sums.word_correct, ones));
  row["word_perplexity"] = std::exp(std::accumulate(sums.word_loss.begin(), sums.word_loss.end(), 0.0) / n);
  row["word_perplexity_interval"] = exp_json(bootstrap.ratio(sums.word_loss, ones));
  row["not_finite"] = sums.not_finite;
}

}  // namespace

Measurement measure_lambada(const LoadedModel& model, const std::vector<TextPair>& pairs,
                            const LengthEvalOptions& options, const std::string& title, const OnEntry& on_entry) {
  const std::vector<LambadaItem> items = tokenize_lambada(pairs, *model.tokenizer);
  const std::vector<int32_t> separator = model.tokenizer->encode(kSeparator);
  const std::optional<int32_t> bos = options.bos ? model.tokenizer->bos_id() : std::nullopt;
  const Bootstrap bootstrap(static_cast<int64_t>(items.size()), options.resamples, options.synthetic.seed);
  const int64_t least = min_lambada_length(items, separator, bos);
  Measurement measured{.entry = {{"items", items.size()},
                                 {"unit", "item"},
                                 {"units", items.size()},
                                 {"separator", kSeparator},
                                 {"lengths", Json::array()},
                                 {"skipped", Json::array()}},
                       .curve = {}};
  measured.curve.tokenizer = model.tokenizer->fingerprint();
  for (const int64_t length : options.lengths) {
    if (length < least) {
      skip(measured.entry, title, length, fmt::format("the longest item has {} tokens", least));
      continue;
    }
    const LambadaSums sums =
        score_lambada(model.scorer, items, separator, bos, length, fmt::format("{} at {}", title, length));
    warn_not_finite(title, length, sums.not_finite);
    const double tokens = std::accumulate(sums.tokens.begin(), sums.tokens.end(), 0.0);
    const double loss = std::accumulate(sums.loss.begin(), sums.loss.end(), 0.0) / tokens;
    const OptionalInterval interval = bootstrap.ratio(sums.loss, sums.tokens);
    Json row = {{"length", length},
                {"streams", sums.streams},
                {"tokens", tokens},
                {"loss", loss},
                {"loss_interval", to_json(interval)},
                {"perplexity", std::exp(loss)},
                {"perplexity_interval", exp_json(interval)}};
    add_words(row, sums, bootstrap);
    measured.entry["lengths"].push_back(row);
    measured.curve.lengths.push_back(length);
    measured.curve.loss.push_back(sums.loss);
    measured.curve.tokens = sums.tokens;
    on_entry(measured.entry);
  }
  if (measured.curve.lengths.empty()) return measured;
  const LambadaSums standard =
      score_lambada_standard(model.scorer, items, bos, model.config.max_length, title + " standard");
  warn_not_finite(title + " standard", model.config.max_length, standard.not_finite);
  Json row = {{"max_length", model.config.max_length}};
  add_words(row, standard, bootstrap);
  measured.entry["standard"] = row;
  return measured;
}

}  // namespace lazy::eval::length
