// Losses on the held-out split, WikiText and LAMBADA, and losses by length and position.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "eval/length/lambada.h"
#include "eval/length/perplexity.h"
#include "eval/python.h"
#include "eval/score.h"
#include "measure/model_measures.h"
#include "model/config.h"

namespace lazy::measure {

namespace {

constexpr size_t kGroups = 256;

std::vector<eval::Score> score_all(LanguageModel& model, const std::vector<eval::Window>& windows,
                                   const std::string& title, bool progress) {
  eval::ScoreOptions options;
  options.title = progress ? title : "";
  options.targets = true;
  // sharing would save almost nothing, because the windows have only their BOS token in common
  options.share_prefixes = false;
  return eval::score(model, windows, options);
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Losses of texts. A text can consist of several windows.
struct TextLosses {
  std::vector<double> loss, tokens, words;  // one entry per text: loss in nats, numbers of tokens and words
};

Json text_json(const TextLosses& t) {
  std::vector<double> by_text;
  for (size_t n = 0; n < t.loss.size(); ++n) by_text.push_back(t.loss[n] / t.tokens[n]);
  return {{"loss_per_token", rounded(sum(t.loss) / sum(t.tokens))},
          {"loss_per_word", rounded(sum(t.loss) / sum(t.words))},
          {"tokens", sum(t.tokens)},
          {"words", sum(t.words)},
          {"texts", t.loss.size()},
          {"by_group", rounded(thinned(by_text, kGroups))}};
}

}  // namespace

Json heldout_measures(LanguageModel& model, const ModelInputs& inputs, int64_t most_tokens) {
  const int64_t scored = inputs.sequences.length - 1;
  const HeldOutWindows heldout =
      heldout_windows(model.config(), inputs.corpus, inputs.sequences, std::max<int64_t>(1, most_tokens / scored));
  const auto count = static_cast<int64_t>(heldout.windows.size());
  std::vector<double> losses;
  for (const eval::Score& s : score_all(model, heldout.windows, "held-out loss", inputs.progress))
    losses.push_back(-s.log_likelihood / static_cast<double>(scored));
  return {{"loss", rounded(sum(losses) / static_cast<double>(count))},
          {"tokens", count * scored},
          {"sequences", count},
          {"whole_split", heldout.whole_split},
          {"bos_per_sequence", inputs.sequences.bos_per_sequence},
          {"bytes_per_token", rounded(heldout.bytes_per_token)},
          {"by_group", rounded(thinned(losses, kGroups))}};
}

Json wikitext_measures(LanguageModel& model, const Tokenizer& tokenizer, const ModelInputs& inputs) {
  const eval::length::TextSource source = eval::length::wikitext_source(inputs.data, {});
  const int32_t bos = eval::require_bos(tokenizer);
  const int64_t length = model.config().max_length;
  std::vector<std::vector<int32_t>> tokens;
  for (const std::string& page : source.texts) tokens.push_back(tokenizer.encode(page));
  Json out = {{"window", length}};
  for (const bool every : {true, false}) {
    std::vector<eval::Window> windows;
    std::vector<size_t> page_of;
    TextLosses pages;
    for (size_t page = 0; page < tokens.size(); ++page) {
      const std::vector<int32_t>& ids = tokens[page];
      for (eval::Window& window :
           every ? eval::rolling_windows_with_bos(ids, bos, length) : eval::rolling_windows(ids, bos, length)) {
        windows.push_back(std::move(window));
        page_of.push_back(page);
      }
      pages.loss.push_back(0);
      pages.tokens.push_back(static_cast<double>(ids.size()));
      pages.words.push_back(static_cast<double>(source.words.at(page)));
    }
    const auto scores = score_all(model, windows, every ? "wikitext, BOS" : "wikitext", inputs.progress);
    for (size_t w = 0; w < windows.size(); ++w) pages.loss[page_of[w]] -= scores[w].log_likelihood;
    out[every ? "bos_every_window" : "no_bos"] = text_json(pages);
  }
  return out;
}

Json lambada_measures(LanguageModel& model, const Tokenizer& tokenizer, const ModelInputs& inputs) {
  const auto pairs = eval::length::load_lambada(inputs.data, {});
  const auto items = eval::length::tokenize_lambada(pairs, tokenizer);
  const int32_t bos = eval::require_bos(tokenizer);
  Json out = Json::object();
  for (const bool every : {true, false}) {
    std::vector<eval::Window> windows;
    for (const auto& item : items) {
      eval::Window window{{item.ids.begin(), item.ids.end() - 1}, {item.ids.begin() + 1, item.ids.end()}};
      if (every) window.input.insert(window.input.begin(), bos);
      windows.push_back(std::move(window));
    }
    const auto scores = score_all(model, windows, every ? "lambada, BOS" : "lambada", inputs.progress);
    TextLosses texts;
    double word_loss = 0, correct = 0;
    for (size_t n = 0; n < items.size(); ++n) {
      texts.loss.push_back(-scores[n].log_likelihood);
      texts.tokens.push_back(static_cast<double>(windows[n].targets.size()));
      texts.words.push_back(static_cast<double>(eval::python_word_count(pairs[n].context + pairs[n].continuation)));
      bool greedy = true;
      // targets[t] is token t + 1 of the window, so the last word begins at targets[context - 1].
      for (size_t t = items[n].context - 1; t < windows[n].targets.size(); ++t) {
        word_loss -= scores[n].targets[t].log_likelihood;
        greedy = greedy && scores[n].targets[t].greedy;
      }
      correct += greedy ? 1 : 0;
    }
    Json& entry = out[every ? "bos_every_window" : "no_bos"] = text_json(texts);
    const auto count = static_cast<double>(items.size());
    entry["last_word_loss"] = rounded(word_loss / count);
    entry["last_word_accuracy"] = rounded(correct / count);
  }
  return out;
}

Json length_measures(LanguageModel& model, const Stretches& stretches, const std::vector<int64_t>& lengths,
                     std::optional<int32_t> bos, bool progress) {
  Json out = Json::object();
  for (const int64_t length : lengths) {
    const auto windows = length_windows(stretches, length, bos);
    const auto scores = score_all(model, windows, fmt::format("loss at {}", length), progress);
    const auto bins = static_cast<size_t>(eval::length::position_bin(length)) + 1;
    std::vector<double> loss(bins), tokens(bins);
    for (size_t w = 0; w < windows.size(); ++w) {
      for (size_t t = 0; t < scores[w].targets.size(); ++t) {
        const auto bin = static_cast<size_t>(eval::length::position_bin(static_cast<int64_t>(t) + 1));
        loss[bin] -= scores[w].targets[t].log_likelihood;
        tokens[bin] += 1;
      }
    }
    std::vector<int64_t> positions;
    std::vector<double> by_position;
    for (size_t bin = 0; bin < bins; ++bin) {
      positions.push_back(eval::length::bin_first(static_cast<int>(bin)));
      by_position.push_back(loss[bin] / tokens[bin]);
    }
    positions.push_back(length + 1);
    out[std::to_string(length)] = {{"loss", rounded(sum(loss) / sum(tokens))},
                                   {"tokens", sum(tokens)},
                                   {"positions", positions},
                                   {"by_position", rounded(by_position)},
                                   {"by_group", rounded(thinned(stretch_losses(stretches, scores), kLengthGroups))}};
  }
  return out;
}

}  // namespace lazy::measure
