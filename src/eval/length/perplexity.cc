#include "eval/length/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"
#include "data/corpus/source.h"
#include "data/shards/corpus.h"
#include "eval/length/measurement.h"
#include "eval/python.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/prompt.h"
#include "model/config.h"

namespace lazy::eval::length {

TextSource wikitext_source(const std::filesystem::path& data, const std::optional<double>& limit) {
  TextSource source{.name = "wikitext", .path = data.string()};
  const Task task = find_task("wikitext");
  std::vector<TaskDocument> rows = read_rows(task, data);
  rows.resize(static_cast<size_t>(apply_limit(static_cast<int64_t>(rows.size()), limit)));
  for (const TaskDocument& row : rows) {
    Question page = make_question(task, row, "");
    source.texts.push_back(std::move(page.text));
    source.words.push_back(page.words);
  }
  return source;
}

TextSource file_source(const std::filesystem::path& text) {
  TextSource source{.name = "heldout", .path = text.string()};
  source.texts.push_back(read_text(text));
  if (strip(source.texts[0]).empty()) fail("eval", "{}: expected text, found an empty file", text.string());
  source.words.push_back(python_word_count(source.texts[0]));
  return source;
}

TextSource corpus_source(const std::filesystem::path& corpus, const std::string& split,
                         const std::optional<double>& limit) {
  TextSource source{.name = "heldout", .path = corpus.string()};
  const std::vector<Shard> shards = open_shards(corpus, split);
  int64_t available = 0;
  for (const Shard& shard : shards) available += shard.documents();
  const auto wanted = static_cast<size_t>(apply_limit(available, limit));
  for (const Shard& shard : shards) {
    source.tokenizer_fingerprint = shard.header().tokenizer_fingerprint;
    source.vocab_size = shard.header().vocab_size;
    for (int64_t d = 0; d < shard.documents() && source.ids.size() < wanted; ++d)
      source.ids.push_back(shard.document(d));
  }
  if (source.ids.empty()) fail("eval", "{}: the {} split has no documents", corpus.string(), split);
  return source;
}

TokenizedText tokenize(const TextSource& source, const Tokenizer& tokenizer, const ModelConfig& config) {
  TokenizedText set;
  if (!source.ids.empty()) {
    check_corpus(config, source.tokenizer_fingerprint, source.vocab_size, source.path);
    set.documents = source.ids;
  } else {
    for (const std::string& text : source.texts) set.documents.push_back(tokenizer.encode(text));
    set.words = source.words;
  }
  for (const auto& document : set.documents) set.tokens += static_cast<int64_t>(document.size());
  return set;
}

namespace {

constexpr size_t kNotScored = ~size_t{0};

// Concatenated tokens of all documents, and for each token the index of its unit (see RollingSums).
struct Stream {
  std::vector<int32_t> ids;
  std::vector<size_t> units;
};

}  // namespace

int position_bin(int64_t visible) { return std::bit_width(static_cast<uint64_t>(visible - 1)); }
int64_t bin_first(int bin) { return bin == 0 ? 1 : (int64_t{1} << (bin - 1)) + 1; }
int64_t bin_last(int bin) { return int64_t{1} << bin; }

RollingSums score_rolling(const Scorer& scorer, const TokenizedText& text, int64_t length, int64_t block,
                          const RollingOptions& options, const std::string& title) {
  if (options.stride < 0 || options.stride > length)
    fail("eval", "stride: expected 1 to {} (the length), found {}", length, options.stride);
  std::vector<Stream> streams;
  size_t units = 0, position = 0;
  for (size_t d = 0; d < text.documents.size(); ++d) {
    if (streams.empty() || options.per_document) {
      streams.emplace_back();
    } else if (options.bos) {
      streams.back().ids.push_back(options.first_context);
      streams.back().units.push_back(kNotScored);
    }
    for (const int32_t id : text.documents[d]) {
      const size_t unit = block > 0 ? position++ / static_cast<size_t>(block) : d;
      streams.back().ids.push_back(id);
      streams.back().units.push_back(unit);
      units = std::max(units, unit + 1);
    }
  }
  if (block == 0) units = text.documents.size();

  const int64_t context = options.stride > 0 ? length - options.stride + 1 : 1;
  std::vector<Window> windows;
  std::vector<size_t> target_units;
  for (const Stream& stream : streams) {
    for (Window& window : rolling_windows(stream.ids, options.first_context, length, context)) {
      if (options.bos) window.input[0] = options.first_context;
      windows.push_back(std::move(window));
    }
    target_units.insert(target_units.end(), stream.units.begin(), stream.units.end());
  }

  const size_t bins = static_cast<size_t>(position_bin(length)) + 1;
  RollingSums sums{.loss = std::vector<double>(units), .tokens = std::vector<double>(units)};
  sums.bin_loss.assign(bins, std::vector<double>(units));
  sums.bin_tokens = sums.bin_loss;
  const std::vector<Score> scores = scorer(windows, title);
  size_t at = 0;  // index of the next token; rolling windows predict every token exactly once, in order
  for (size_t w = 0; w < windows.size(); ++w) {
    const size_t before = windows[w].input.size() - windows[w].targets.size();
    for (size_t t = 0; t < windows[w].targets.size(); ++t) {
      const size_t unit = target_units[at++];
      if (unit == kNotScored) continue;
      const double loss = -static_cast<double>(scores[w].targets[t].log_likelihood);
      const auto bin = static_cast<size_t>(position_bin(static_cast<int64_t>(before + t) + 1));
      if (!std::isfinite(loss)) ++sums.not_finite;
      sums.loss[unit] += loss;
      sums.tokens[unit] += 1;
      sums.bin_loss[bin][unit] += loss;
      sums.bin_tokens[bin][unit] += 1;
    }
  }
  return sums;
}

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

// Returns the number of words of each unit. If the units are blocks, only the total number of words is known. It is
// then divided among the blocks in proportion to their number of tokens.
std::vector<double> words_by_unit(const TokenizedText& text, const RollingSums& sums, int64_t block) {
  if (block == 0) return {text.words.begin(), text.words.end()};
  const double per_token =
      double(std::accumulate(text.words.begin(), text.words.end(), int64_t{0})) / double(text.tokens);
  std::vector<double> words = sums.tokens;
  for (double& w : words) w *= per_token;
  return words;
}

int64_t longest_run(const TokenizedText& text, bool per_document) {
  if (!per_document) return text.tokens;
  size_t most = 0;
  for (const auto& document : text.documents) most = std::max(most, document.size());
  return static_cast<int64_t>(most);
}

}  // namespace

Measurement measure_text(const LoadedModel& model, const TextSource& source, const LengthEvalOptions& options,
                         const std::string& title, const OnEntry& on_entry) {
  const TokenizedText text = tokenize(source, *model.tokenizer, model.config);
  Measurement measured{.entry = {{"tokens", text.tokens}, {"lengths", Json::array()}, {"skipped", Json::array()}},
                       .curve = {}};
  Json& entry = measured.entry;
  std::vector<int64_t> lengths;
  for (const int64_t length : options.lengths) {
    if (const int64_t available = longest_run(text, options.per_document); available < length) {
      skip(entry, title, length,
           fmt::format("the {} has {} tokens", options.per_document ? "longest document" : "text", available));
    } else {
      lengths.push_back(length);
    }
  }
  if (lengths.empty()) return measured;

  const int64_t block = text.documents.size() > 1 ? 0 : lengths.back();
  const RollingOptions rolling{options.bos, options.per_document, options.stride, prefix_token(*model.tokenizer)};
  measured.curve = {.lengths = lengths, .loss = {}, .tokens = {}, .tokenizer = model.tokenizer->fingerprint()};
  entry["unit"] = block == 0 ? "document" : fmt::format("block of {} tokens", block);
  std::vector<double> first;  // bootstrap draws of the loss at the first length
  for (const int64_t length : lengths) {
    const auto begin = Clock::now();
    const RollingSums sums =
        score_rolling(model.scorer, text, length, block, rolling, fmt::format("{} at {}", title, length));
    warn_not_finite(title, length, sums.not_finite);
    const Bootstrap bootstrap(static_cast<int64_t>(sums.loss.size()), options.resamples, options.synthetic.seed);
    const std::vector<double> draws = bootstrap.ratios(sums.loss, sums.tokens);
    const OptionalInterval interval = bootstrap.interval(draws);
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
    on_entry(entry);
  }
  return measured;
}

}  // namespace lazy::eval::length
