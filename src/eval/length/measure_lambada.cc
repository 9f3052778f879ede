// LAMBADA at every length, beside its standard score.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "eval/length/measures.h"

namespace lazy::eval::length {
namespace {

constexpr const char* kSeparator = "\n\n";

// Accuracy and perplexity of the last words: exp of the mean over items of each word's loss, as the benchmark has it.
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

Measured measure_lambada(const Opened& model, const std::vector<TextPair>& pairs, const StudyOptions& options,
                         const std::string& title) {
  const std::vector<LambadaItem> items = tokenize_lambada(pairs, *model.tokenizer);
  const std::vector<int32_t> separator = model.tokenizer->encode(kSeparator);
  const std::optional<int32_t> bos = options.bos ? model.tokenizer->bos_id() : std::nullopt;
  const Bootstrap bootstrap(static_cast<int64_t>(items.size()), options.resamples, options.probe.seed);
  const int64_t least = lambada_shortest(items, separator, bos);
  Measured measured{.entry = {{"items", items.size()},
                              {"unit", "item"},
                              {"units", items.size()},
                              {"separator", kSeparator},
                              {"lengths", Json::array()},
                              {"skipped", Json::array()}},
                    .curve = {}};
  measured.curve.tokenizer = model.tokenizer->fingerprint();
  for (const int64_t length : options.lengths) {
    if (length < least) {
      skip(measured.entry, title, length, fmt::format("the longest item takes {} tokens", least));
      continue;
    }
    const LambadaSums sums =
        score_lambada(model.scorer, items, separator, bos, length, fmt::format("{} at {}", title, length));
    warn_not_finite(title, length, sums.not_finite);
    const double tokens = std::accumulate(sums.tokens.begin(), sums.tokens.end(), 0.0);
    const double loss = std::accumulate(sums.loss.begin(), sums.loss.end(), 0.0) / tokens;
    const Interval interval = bootstrap.ratio(sums.loss, sums.tokens);
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
