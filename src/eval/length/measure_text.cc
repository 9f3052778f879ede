// Perplexity of a text at every length, and loss by position in the longest windows.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "core/clock.h"
#include "eval/encode.h"
#include "eval/length/measures.h"

namespace lazy::eval::length {
namespace {

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

Json bins_json(const RollingSums& sums, const Bootstrap& bootstrap, int64_t length) {
  Json bins = Json::array();
  for (size_t b = 0; b < sums.bin_loss.size(); ++b) {
    const double tokens = sum(sums.bin_tokens[b]);
    if (tokens == 0) continue;
    bins.push_back({{"from", bin_first(static_cast<int>(b))},
                    {"to", std::min(bin_last(static_cast<int>(b)), length)},
                    {"tokens", tokens},
                    {"loss", sum(sums.bin_loss[b]) / tokens},
                    {"loss_interval", to_json(bootstrap.ratio(sums.bin_loss[b], sums.bin_tokens[b]))}});
  }
  return bins;
}

// By unit; of blocks only the total is known, so that each gets its share by tokens.
std::vector<double> words_by_unit(const TextSet& text, const RollingSums& sums, int64_t block) {
  if (block == 0) return {text.words.begin(), text.words.end()};
  const double per_token =
      double(std::accumulate(text.words.begin(), text.words.end(), int64_t{0})) / double(text.tokens);
  std::vector<double> words = sums.tokens;
  for (double& w : words) w *= per_token;
  return words;
}

int64_t longest_run(const TextSet& text, bool per_document) {
  if (!per_document) return text.tokens;
  size_t most = 0;
  for (const auto& document : text.documents) most = std::max(most, document.size());
  return static_cast<int64_t>(most);
}

}  // namespace

Measured measure_text(const Opened& model, const TextSource& source, const StudyOptions& options,
                      const std::string& title) {
  const TextSet text = tokenize(source, *model.tokenizer, model.config);
  Measured measured{.entry = {{"tokens", text.tokens}, {"lengths", Json::array()}, {"skipped", Json::array()}},
                    .curve = {}};
  Json& entry = measured.entry;
  std::vector<int64_t> lengths;
  for (const int64_t length : options.lengths) {
    if (const int64_t there = longest_run(text, options.per_document); there < length) {
      skip(entry, title, length,
           fmt::format("the {} has {} tokens", options.per_document ? "longest document" : "text", there));
    } else {
      lengths.push_back(length);
    }
  }
  if (lengths.empty()) return measured;

  const int64_t block = text.documents.size() > 1 ? 0 : lengths.back();
  const RollingOptions rolling{options.bos, options.per_document, options.stride, prefix_token(*model.tokenizer)};
  measured.curve = {.lengths = lengths, .loss = {}, .tokens = {}, .tokenizer = model.tokenizer->fingerprint()};
  std::vector<double> first;  // the first length's draws
  for (const int64_t length : lengths) {
    const auto begin = Clock::now();
    const RollingSums sums =
        score_rolling(model.scorer, text, length, block, rolling, fmt::format("{} at {}", title, length));
    warn_not_finite(title, length, sums.not_finite);
    const Bootstrap bootstrap(static_cast<int64_t>(sums.loss.size()), options.resamples, options.probe.seed);
    const std::vector<double> draws = bootstrap.ratios(sums.loss, sums.tokens);
    const Interval interval = bootstrap.interval(draws);
    const double loss = sum(sums.loss) / sum(sums.tokens);
    Json row = {{"length", length},
                {"tokens", sum(sums.tokens)},
                {"loss", loss},
                {"loss_interval", to_json(interval)},
                {"perplexity", std::exp(loss)},
                {"perplexity_interval", exp_json(interval)}};
    if (!text.words.empty()) {
      const std::vector<double> words = words_by_unit(text, sums, block);
      row["words"] = sum(words);
      row["word_perplexity"] = std::exp(sum(sums.loss) / sum(words));
      row["word_perplexity_interval"] = exp_json(bootstrap.ratio(sums.loss, words));
    }
    if (first.empty()) first = draws;
    std::vector<double> change = draws;
    for (size_t i = 0; i < change.size(); ++i) change[i] -= first[i];
    row["change"] = loss - (entry["lengths"].empty() ? loss : entry["lengths"][0]["loss"].get<double>());
    row["change_interval"] = to_json(bootstrap.interval(change));
    row["not_finite"] = sums.not_finite;
    row["seconds"] = seconds_since(begin);
    if (options.stride == 0) row["positions"] = bins_json(sums, bootstrap, length);
    entry["lengths"].push_back(row);
    entry["units"] = sums.loss.size();
    measured.curve.loss.push_back(sums.loss);
    measured.curve.tokens = sums.tokens;
  }
  entry["unit"] = block == 0 ? "document" : fmt::format("block of {} tokens", block);
  return measured;
}

}  // namespace lazy::eval::length
