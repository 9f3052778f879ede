#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "core/error.h"
#include "core/file.h"
#include "eval/length/length_eval.h"
#include "length_stub.h"
#include "small_model.h"
#include "support/error_of.h"

namespace lazy::eval::length {
namespace fs = std::filesystem;

class LengthStudy : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::path(testing::TempDir()) /
             fmt::format("lengths_{}_{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder);
    std::string pages;
    for (int page = 0; page < 5; ++page) {
      pages += " = Page " + std::to_string(page) + " = \n \n";
      for (int i = 0; i < 20 + 7 * page; ++i) pages += " word" + std::to_string(i * page);
      pages += " \n";
    }
    write_file_atomic(folder / "wiki.test.raw", pages);
    write_file_atomic(folder / "lambada_openai.jsonl",
                      "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"once upon a time\"}\n");
    options.lengths = {64, 128, 256};
    options.data = folder;
  }
  void TearDown() override { fs::remove_all(folder); }

  // Returns a stub model over bytes. The loss of a target is `near` if fewer than 100 tokens precede it, and `far`
  // otherwise.
  ModelVariant subject(const std::string& label, float near, float far) {
    return {label, "models/" + label, "", [=] {
              ModelConfig config;
              config.vocab_size = 300;
              config.max_length = 64;
              return LoadedModel{stub([=](const std::vector<int32_t>& before, int32_t) {
                                   return TargetScore{-(before.size() < 100 ? near : far), false};
                                 }),
                                 load_tokenizer("bytes"), config, "cpu"};
            }};
  }
  std::string error() {
    return error_of([&] { evaluate_lengths({subject("a", 1, 1)}, options); });
  }

  fs::path folder;
  LengthEvalOptions options;
};

TEST_F(LengthStudy, Curves_AreComparedWithIntervals) {
  const Json results = evaluate_lengths({subject("flat", 2, 2), subject("steep", 2, 3)}, options);
  const Json& wikitext = results["results"]["wikitext"];
  const Json& flat = wikitext["models"][0]["lengths"];
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_EQ(flat[0]["loss"], 2.0);
  EXPECT_NEAR(flat[2]["perplexity"].get<double>(), std::exp(2), 1e-12);
  EXPECT_EQ(flat[2]["loss_interval"], Json({2.0, 2.0}));
  EXPECT_EQ(flat[0]["tokens"], flat[2]["tokens"]);
  EXPECT_EQ(wikitext["models"][0]["unit"], "document");
  EXPECT_EQ(wikitext["models"][0]["units"], 5);
  EXPECT_EQ(wikitext["models"][1]["lengths"][0]["loss"], 2.0);
  const double loss = wikitext["models"][1]["lengths"][2]["loss"].get<double>();
  EXPECT_GT(loss, 2.2);
  EXPECT_DOUBLE_EQ(wikitext["models"][1]["lengths"][2]["change"].get<double>(), loss - 2);
  const Json& bins = wikitext["models"][1]["lengths"][2]["positions"];
  EXPECT_EQ(bins.front()["from"], 1);
  EXPECT_EQ(bins.back()["from"], 129);
  EXPECT_EQ(bins.back()["loss"], 3.0);
  EXPECT_EQ(bins[5]["loss"], 2.0);
  // The confidence interval of the loss of `steep` minus the loss of `flat` must be above zero.
  const Json& change = wikitext["change_against_first"][0];
  EXPECT_EQ(change["model"], 1);
  EXPECT_DOUBLE_EQ(change["lengths"][1]["difference"].get<double>(), loss - 2);
  EXPECT_GT(change["lengths"][1]["interval"][0].get<double>(), 0);
  // The perplexity per word must be computed with the number of words of the pages.
  const double words = flat[0]["words"].get<double>(), tokens = flat[0]["tokens"].get<double>();
  EXPECT_DOUBLE_EQ(flat[0]["word_perplexity"].get<double>(), std::exp(2 * tokens / words));

  const Json& lambada = results["results"]["lambada_openai"]["models"][0];
  EXPECT_EQ(lambada["lengths"].size(), 3u);
  EXPECT_EQ(lambada["lengths"][0]["tokens"], 38.0);
  EXPECT_EQ(lambada["standard"]["max_length"], 64);
  EXPECT_NEAR(lambada["standard"]["word_perplexity"].get<double>(), std::exp(2 * (4 + 5) / 2.0),
              1e-9);  // the last words have 4 and 5 bytes: " mat" and " time"

  const std::string table = to_table(results);
  EXPECT_THAT(table, Names({"wikitext", 95, 5}));  // 95 % is the level of the interval; 5 documents
  EXPECT_THAT(table, testing::HasSubstr("7.389 [7.389, 7.389]"));
  EXPECT_THAT(table, testing::HasSubstr("|129-256|"));
  EXPECT_EQ(
      evaluate_lengths({subject("flat", 2, 2)}, options)["results"]["wikitext"]["models"][0]["lengths"][1]["loss"],
      2.0);
}

TEST_F(LengthStudy, OnLength_ReceivesResultsThatCanBePrinted) {
  std::vector<Json> seen;
  options.tasks = {"wikitext", "lambada_openai", "passkey"};
  options.synthetic.samples = 2;
  options.on_length = [&](const Json& unfinished) {
    EXPECT_THAT(to_table(unfinished), Names({"wikitext"}));
    seen.push_back(unfinished);
  };
  const Json results = evaluate_lengths({subject("a", 1, 2), subject("b", 1, 3)}, options);
  EXPECT_FALSE(results.contains("unfinished"));
  size_t rows = 0;
  for (const auto& [task, result] : results["results"].items()) {
    for (const Json& model : result["models"]) rows += model["lengths"].size();
  }
  ASSERT_EQ(seen.size(), rows);
  EXPECT_EQ(seen[0]["unfinished"], true);
  EXPECT_EQ(seen[0]["results"]["wikitext"]["models"][0]["lengths"].size(), 1u);
  EXPECT_TRUE(seen[0]["results"]["passkey"]["models"].empty());
  const auto first = [](const Json& json) { return json["results"]["wikitext"]["models"][0]["lengths"][0]["loss"]; };
  EXPECT_EQ(first(seen[0]), first(results));
  EXPECT_EQ(seen.back()["models"].size(), 2u);
}

TEST_F(LengthStudy, TooLongLengths_AreSkipped) {
  options.lengths = {8, 64, 100000};
  const Json results = evaluate_lengths({subject("a", 1, 1)}, options);
  const Json& wikitext = results["results"]["wikitext"]["models"][0];
  EXPECT_EQ(wikitext["lengths"].size(), 2u);
  EXPECT_EQ(wikitext["skipped"][0]["length"], 100000);
  EXPECT_THAT(wikitext["skipped"][0]["why"].get<std::string>(), Names({wikitext["tokens"].get<int64_t>()}));
  EXPECT_EQ(results["results"]["lambada_openai"]["models"][0]["skipped"][0]["length"], 8);
  options.lengths = {100000};
  EXPECT_THAT(error(), Names({"wikitext", wikitext["tokens"].get<int64_t>()}));
}

TEST_F(LengthStudy, TextWithoutDocuments_IsResampledByBlocks) {
  write_file_atomic(folder / "book.txt", std::string(1000, 'x') + " end");
  options.text = folder / "book.txt";
  options.tasks = {"heldout"};
  const Json results = evaluate_lengths({subject("a", 1, 2)}, options);
  const Json& model = results["results"]["heldout"]["models"][0];
  EXPECT_EQ(model["unit"], "block of 256 tokens");
  EXPECT_EQ(model["units"], 4);
  EXPECT_FALSE(model["lengths"][2]["loss_interval"].is_null());
  EXPECT_DOUBLE_EQ(model["lengths"][0]["words"].get<double>(), 2);
}

TEST_F(LengthStudy, SyntheticTasks_ReportByLengthAndDepth) {
  options.tasks = {"passkey", "recall"};
  options.lengths = {20, 256, 400};
  options.synthetic.samples = 2;
  const Json results = evaluate_lengths({subject("a", 1, 2)}, options);
  for (const char* task : {"passkey", "recall"}) {
    const Json& model = results["results"][task]["models"][0];
    EXPECT_EQ(model["skipped"].size(), 1u) << task;
    ASSERT_EQ(model["lengths"].size(), 2u) << task;
    EXPECT_EQ(model["lengths"][1]["depths"].size(), 5u);
    EXPECT_EQ(model["lengths"][1]["depths"][4]["exact"], 0.0);
    EXPECT_EQ(model["lengths"][1]["depths"][4]["log_likelihood"], std::string(task) == "passkey" ? -12.0 : -2.0);
  }
  EXPECT_THAT(to_table(results), Names({"passkey", "recall", 25}));
}

TEST_F(LengthStudy, InvalidOptions_AreRejectedBeforeLoadingModels) {
  ModelVariant never{"a", "a", "", []() -> LoadedModel { throw std::logic_error("opened"); }};
  const auto message = [&] { return error_of([&] { evaluate_lengths({never}, options); }); };
  options.lengths = {64, 64};
  EXPECT_THAT(message(), Names({"--lengths", 64}));
  options.lengths = {1, 64};
  EXPECT_THAT(message(), Names({"--lengths", 2, 1}));
  options.lengths = {64};
  options.stride = 65;
  EXPECT_THAT(message(), Names({"--stride", 1, 64, 65}));
  options.stride = 0;
  options.tasks = {"paskey"};
  EXPECT_THAT(message(), Names({"'paskey'", "'passkey'"}));
  options.tasks = {"heldout"};
  EXPECT_THAT(message(), Names({"heldout", "--corpus", "--text"}));
  options.tasks = {"recall", "recall"};
  EXPECT_THAT(message(), Names({"--tasks", "recall"}));
  options.tasks = {};
  options.data = folder / "none";
  EXPECT_THAT(message(), Names({"--data", options.data.string()}));
}

TEST_F(LengthStudy, NonFiniteLosses_AreReported) {
  options.tasks = {"wikitext"};
  const Json results = evaluate_lengths({subject("a", 1, NAN)}, options);
  const Json& rows = results["results"]["wikitext"]["models"][0]["lengths"];
  EXPECT_EQ(rows[0]["not_finite"], 0);
  EXPECT_GT(rows[2]["not_finite"], 100);
  EXPECT_TRUE(Json::parse(results.dump())["results"]["wikitext"]["models"][0]["lengths"][2]["loss"].is_null());
  EXPECT_THAT(to_table(results), testing::HasSubstr("nan"));
}

TEST(LengthVariant, RopeBase_ChangesOnlyPositions) {
  EXPECT_EQ(parse_variant("rope-base=5e5").rope_base, 5e5);
  const ModelOptions both = parse_variant("positions=yarn:4,cache=streaming:4+28", parse_variant("rope-base=7"));
  EXPECT_EQ(both.command_line(), " --positions yarn:4 --rope-base 7 --cache streaming:4+28");
  for (const char* wrong : {"rope-base", "rope-base=", "rope-base=1", "rope-base=x", "rope-base=nan", "rope-base=10x",
                            "base=4", "positions=", "rope-base=2,"}) {
    EXPECT_THROW(parse_variant(wrong), Error) << wrong;
  }
  ModelConfig config = small_config(50);
  config.positions.rope_base = 1e4;
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("variant_{}", ::getpid());
  fs::create_directories(folder);
  LanguageModel(config, 3).save(folder);
  const std::vector<Window> windows = {{{1, 2, 3, 4, 5, 6, 7, 8}, {2, 3, 4, 5, 6, 7, 8, 9}}};
  const auto value = [&](const std::string& variant) {
    const ModelOptions options = parse_variant(variant);
    const Scorer ask = make_scorer(std::make_shared<LanguageModel>(open_model(folder, options)),
                                   {.cache = options.streaming()}, false);
    return ask(windows, "")[0].log_likelihood;
  };
  const double plain = value("");
  EXPECT_EQ(value("rope-base=10000"), plain);
  EXPECT_NE(value("rope-base=500000"), plain);
  // The result must equal the result of a model that was saved with this RoPE base.
  ModelConfig other = config;
  other.positions.rope_base = 5e5;
  LanguageModel expected(other, 3);
  EXPECT_EQ(value("rope-base=500000"), score(expected, windows, {1, ""})[0].log_likelihood);
  EXPECT_NE(value("positions=yarn:4"), plain);
  // the last of the eight tokens attend to fewer keys than in a full cache
  EXPECT_NE(value("cache=streaming:2+3"), plain);
  EXPECT_NEAR(value("cache=streaming:4+28"), plain, 1e-4);  // the cache is so large that no key is evicted
  fs::remove_all(folder);
}

}  // namespace lazy::eval::length
