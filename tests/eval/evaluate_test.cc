#include "eval/evaluate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/file.h"
#include "eval/requests.h"
#include "eval/score.h"
#include "model/config.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "small_model.h"

namespace lazy::eval {
namespace fs = std::filesystem;

LanguageModel tiny_model(Normalizer normalizer = Normalizer::elastic, int64_t vocabulary = 300) {
  ModelConfig config = small_config(vocabulary, 48);
  config.attention.normalizer = normalizer;
  config.attention.distance_bias_window = normalizer == Normalizer::elastic ? 16 : 0;
  return LanguageModel(config, 7);
}

TEST(Score, MixedLengthBatch_MatchesSingleWindows) {
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::elastic}) {
    LanguageModel model = tiny_model(normalizer);
    std::vector<Window> windows;
    for (int n : {5, 40, 1, 17, 40, 3, 33}) {
      Window w;
      for (int i = 0; i < n; ++i) w.input.push_back((i * 37 + n * 11) % 300);
      w.targets.assign(w.input.begin() + (n > 2 ? n / 2 : 0), w.input.end());
      windows.push_back(w);
    }
    // The targets of this window are the most likely tokens according to the model, so its score must be greedy.
    const at::NoGradGuard no_grad;
    Window greedy{{3, 4, 5}, {}};
    const at::Tensor best =
        model.logits(model.forward(at::tensor({int64_t{3}, int64_t{4}, int64_t{5}}).unsqueeze(0)).hidden)[0].argmax(-1);
    for (int64_t i = 0; i < 3; ++i) greedy.targets.push_back(static_cast<int32_t>(best[i].item<int64_t>()));
    windows.push_back(greedy);
    for (int64_t batch_size : {1, 3, 100}) {
      const auto scores = score(model, windows, {batch_size, ""});
      ASSERT_EQ(scores.size(), windows.size());
      for (size_t i = 0; i < windows.size(); ++i) {
        const Score expected = plain_score(model, windows[i]);
        // Compares fp32 with float64. The bound allows for the rounding of a sum with one log-probability per target,
        // each of magnitude at most 20.
        EXPECT_NEAR(scores[i].log_likelihood, expected.log_likelihood,
                    20 * 64 * 1.2e-7 * double(windows[i].targets.size()))
            << i;
        EXPECT_EQ(scores[i].greedy, expected.greedy) << i;
      }
      EXPECT_TRUE(scores.back().greedy);
    }
  }
  LanguageModel model = tiny_model();
  EXPECT_THROW(score(model, {{{300}, {1}}}, {1, ""}), Error);
  EXPECT_THROW(score(model, {{{1}, {1, 2}}}, {1, ""}), Error);
  EXPECT_THROW(score(model, {{{1}, {}}}, {1, ""}), Error);
}

TEST(Score, UnsharedPrefixes_GiveTheSameScores) {
  LanguageModel model = tiny_model();
  std::vector<Window> windows;
  for (int n : {12, 12, 5, 30}) {
    Window w{{0}, {}};
    for (int i = 1; i < n; ++i) w.input.push_back((i * 37 + n * 11) % 300);
    w.targets.assign(w.input.begin() + 1, w.input.end());
    windows.push_back(w);
  }
  const auto shared = score(model, windows, {.title = ""}),
             apart = score(model, windows, {.title = "", .targets = true, .share_prefixes = false});
  for (size_t i = 0; i < windows.size(); ++i) {
    EXPECT_NEAR(apart[i].log_likelihood, shared[i].log_likelihood, 1e-3);
    EXPECT_EQ(apart[i].targets.size(), windows[i].targets.size());
  }
}

TEST(Evaluate, BosEveryWindow_AppliesToText) {
  LanguageModel model = tiny_model();
  const auto tokenizer = load_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 9; ++i) text += "The quick brown fox jumps over the lazy dog. ";
  HeldoutOptions options{.max_length = 16, .progress = false};
  const auto loss = [&] { return evaluate_text(model, *tokenizer, text, "fox.txt", options).metrics.at(0).value; };
  const double plain = loss();
  options.bos_every_window = true;
  double expected = 0;
  const std::vector<int32_t> ids = tokenizer->encode(text);
  for (size_t begin = 0; begin < ids.size(); begin += 16) {
    const size_t end = std::min(begin + 16, ids.size());
    Window w{{*tokenizer->bos_id()}, {ids.begin() + static_cast<long>(begin), ids.begin() + static_cast<long>(end)}};
    // The input of the last window is extended to the left, so that it has the full length.
    const size_t from = end - begin < 16 ? end - 16 : begin;
    w.input.insert(w.input.end(), ids.begin() + static_cast<long>(end - begin < 16 ? from : begin),
                   ids.begin() + static_cast<long>(end) - 1);
    expected -= plain_score(model, w).log_likelihood;
  }
  EXPECT_NEAR(loss(), expected / static_cast<double>(ids.size()), 1e-4);
  EXPECT_GT(std::abs(loss() - plain), 1e-3);
}

TEST(Evaluate, TextMetrics_FollowFromLogLikelihood) {
  LanguageModel model = tiny_model();
  const auto tokenizer = load_tokenizer("bytes");
  const std::string text = "The quick brown fox jumps over the lazy dog, and the dog does not care at all about it.\n";
  const TaskResult result =
      evaluate_text(model, *tokenizer, text, "fox.txt", {.score = {.batch_size = 2}, .progress = false});
  const auto ids = tokenizer->encode(text);
  double sum = 0;
  const int32_t prefix = tokenizer->bos_id() ? *tokenizer->bos_id() : *tokenizer->eos_id();
  for (const Window& w : rolling_windows(ids, prefix, 48)) sum += plain_score(model, w).log_likelihood;
  const double n = double(ids.size()), bytes = double(text.size()),
               words = 20;  // 19 words, and the empty string at the end, which also counts
  const std::vector<std::pair<std::string, double>> expected = {{"loss", -sum / n},
                                                                {"bits_per_byte", -sum / bytes / std::numbers::ln2},
                                                                {"perplexity", std::exp(-sum / n)},
                                                                {"byte_perplexity", std::exp(-sum / bytes)},
                                                                {"word_perplexity", std::exp(-sum / words)}};
  ASSERT_EQ(result.metrics.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(result.metrics[i].name, expected[i].first);
    EXPECT_NEAR(result.metrics[i].value / expected[i].second, 1, 1e-4) << expected[i].first;
  }
  // With BOS at the start of the text, one more token is predicted.
  const TaskResult with_bos = evaluate_text(model, *tokenizer, text, "fox.txt", {.bos = true, .progress = false});
  EXPECT_EQ(with_bos.config["tokens"], result.config["tokens"].get<int64_t>() + 1);
  EXPECT_THROW(evaluate_text(model, *tokenizer, "", "empty.txt", {}), Error);
}

TEST(Evaluate, TextLimit_ScoresTheFirstWindows) {
  LanguageModel model = tiny_model();
  const auto tokenizer = load_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 9; ++i) text += "The quick brown fox jumps over the lazy dog. ";
  HeldoutOptions options{.max_length = 16, .progress = false};
  const auto result = [&](const std::string& scored) { return evaluate_text(model, *tokenizer, scored, "x", options); };
  const TaskResult beginning = result(text.substr(0, 48));  // this text has three windows
  options.limit = 3;
  const TaskResult limited = result(text);
  for (const char* key : {"windows", "tokens", "words", "bytes"}) EXPECT_EQ(limited.config[key], beginning.config[key]);
  EXPECT_EQ(limited.config["tokens"], 48);
  for (size_t i = 0; i < limited.metrics.size(); ++i)
    EXPECT_NEAR(limited.metrics[i].value, beginning.metrics[i].value, 1e-4 * beginning.metrics[i].value);
  options.limit = 0.5;
  options.bos = true;  // BOS becomes the first token of the text and counts as no bytes
  EXPECT_EQ(result(text.substr(0, 95)).config["bytes"], 47);
  options.limit = 1e9;
  EXPECT_EQ(result(text).config["bytes"], text.size());
}

TEST(Evaluate, Wikitext_WeightsDocumentsByWords) {
  LanguageModel model = tiny_model();
  const auto tokenizer = load_tokenizer("bytes");
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("wikitext_{}", ::getpid());
  fs::create_directories(folder);
  write_file_atomic(
      folder / "wiki.test.raw",
      " = One = \n \n a b @-@ c , d \n = Two = \n \n a much longer second page with ( brackets ) in it \n");
  const Task task = find_task("wikitext");
  double sum = 0, words = 0;
  for (const TaskDocument& row : read_rows(task, folder)) {
    const Question page = make_question(task, row, "");
    for (const Window& w : rolling_windows(tokenizer->encode(page.text),
                                           tokenizer->bos_id() ? *tokenizer->bos_id() : *tokenizer->eos_id(), 20)) {
      sum += plain_score(model, w).log_likelihood;
    }
    words += double(page.words);
  }
  const TaskResult result =
      evaluate_tasks(model, *tokenizer, {task}, folder, {.prompt = {.max_length = 20}, .progress = false})[0];
  EXPECT_EQ(result.metrics[0].name, "word_perplexity");
  EXPECT_NEAR(std::log(result.metrics[0].value), -sum / words, 1e-4 * -sum / words);
  EXPECT_EQ(result.original, 2);
  const TaskResult limited =
      evaluate_tasks(model, *tokenizer, {task}, folder, {.prompt = {.limit = 1}, .progress = false})[0];
  EXPECT_EQ(limited.effective, 1);
  EXPECT_EQ(limited.original, 2);
  fs::remove_all(folder);
}

TEST(Evaluate, TokenizerMismatch_IsError) {
  ModelConfig config;
  config.vocab_size = 300;
  EXPECT_NO_THROW(check_corpus(config, 5, 300, "t"));
  EXPECT_THROW(check_corpus(config, 5, 301, "t"), Error);
  config.tokenizer_fingerprint = 4;
  EXPECT_THROW(check_corpus(config, 5, 300, "t"), Error);
  EXPECT_THROW(check_tokenizer(config, 5, "t"), Error);
  config.tokenizer_fingerprint = 5;
  EXPECT_NO_THROW(check_corpus(config, 5, 300, "t"));
  EXPECT_NO_THROW(check_tokenizer(config, 5, "t"));
}

TEST(Results, Results_HaveHarnessSchemaAndTable) {
  const std::vector<TaskResult> results = {{.name = "wikitext",
                                            .version = 2,
                                            .metrics = {{"word_perplexity", 41.25}, {"byte_perplexity", NAN}},
                                            .original = 62,
                                            .effective = 5,
                                            .config = {{"task", "wikitext"}},
                                            .seconds = 1.5}};
  const auto json = to_json(results, {.model_path = "runs/a/model", .limit = 5});
  EXPECT_EQ(json["results"]["wikitext"]["word_perplexity,none"], 41.25);
  EXPECT_TRUE(json["results"]["wikitext"]["byte_perplexity,none"].is_null());
  EXPECT_EQ(json["results"]["wikitext"]["word_perplexity_stderr,none"], "N/A");
  EXPECT_EQ(json["higher_is_better"]["wikitext"]["word_perplexity"], false);
  EXPECT_EQ(json["n-samples"]["wikitext"]["original"], 62);
  EXPECT_EQ(json["n-samples"]["wikitext"]["effective"], 5);
  EXPECT_EQ(json["versions"]["wikitext"], 2.0);
  EXPECT_EQ(json["n-shot"]["wikitext"], 0);
  EXPECT_EQ(json["config"]["limit"], 5);
  EXPECT_EQ(json["model_name_sanitized"], "runs__a__model");
  EXPECT_EQ(to_table(results),
            "|Tasks   |Version|Filter|n-shot|Metric         | |Value  | |Stderr|\n"
            "|--------|------:|------|-----:|---------------|-|------:|-|-----:|\n"
            "|wikitext|      2|none  |     0|byte_perplexity|↓|    nan|±|   N/A|\n"
            "|        |       |none  |     0|word_perplexity|↓|41.2500|±|   N/A|\n");
}

TEST(Results, ConstantLabel_HasNoRescaledMajority) {
  const std::vector<TaskResult> results = {{.name = "piqa",
                                            .version = 1,
                                            .metrics = {{"acc", 0.75, true, 0.1}},
                                            .effective = 4,
                                            .config = {{"task", "piqa"}},
                                            .chance = Chance{0.5, 1}}};
  EXPECT_THAT(to_table(results), testing::HasSubstr("|piqa |acc   |0.7500|0.5000|  0.5000|  1.0000|     N/A|\n"));
  EXPECT_TRUE(to_json(results, {})["chance"]["piqa"]["acc"]["rescaled_majority"].is_null());
}

}  // namespace lazy::eval
