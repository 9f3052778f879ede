// Tests the recipe rivals from training to page with very small models, and its page on made-up results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/file.h"
#include "repro/recipe_file.h"
#include "repro/report.h"
#include "support/error_of.h"
#include "support/tiny_corpus.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kModels[] = {"softmax", "elastic", "lazy", "gated", "off-by-one", "softpick", "learned-sink"};

// The recipe with its claims, tables and figures, and with smaller models.
std::string small_rivals() {
  std::string text = R"(
[recipe]
title = "rivals, small"
source = "nothing"
with = ["rivals"]

[variables]
context = [32, 32, 32]
four-times = [64, 64, 64]
rounds = [1, 1, 1]
outlier-texts = [2, 2, 2]
quantized-texts = [2, 2, 2]
cache-texts = [1, 1, 1]
read-1 = [8, 8, 8]
read-2 = [16, 16, 16]
read-3 = [32, 32, 32]
read-4 = [264, 264, 264]
read-5 = [280, 280, 280]
)";
  const std::map<std::string, std::string> own{
      {"elastic", "model.normalizer=elastic"},   {"lazy", "model.normalizer=elastic"},
      {"gated", "model.attention_gate=element"}, {"off-by-one", "model.sink_trainable=false"},
      {"softpick", "model.normalizer=softpick"}, {"learned-sink", "model.normalizer=softmax_sink"}};
  for (const std::string model : kModels) {
    text += fmt::format("[[model]]\nname = \"{}\"\nkind = \"transformer\"\noverrides = [", model);
    if (own.contains(model)) text += fmt::format("\"{}\", ", own.at(model));
    if (model == "lazy") text += "\"model.distance_bias_window=8\", ";
    if (model == "off-by-one") text += "\"model.normalizer=softmax_sink\", ";
    text += R"("model.hidden_size=16", "model.num_hidden_layers=1", "model.num_heads=2", "model.intermediate_size=32",
  "model.max_position_embeddings=32", "training.seq_len=32", "training.batch_size=2", "checkpoint.every=2",
  "checkpoint.keep_last=3", "lr_scheduler.warmup_steps=1", "training.steps=4", "validation.every=2",
  "validation.batches=1"]
)";
  }
  return text;
}

class Rivals : public testing::Test {
 protected:
  const fs::path folder_ = fs::path(testing::TempDir()) / ("rivals_" + std::to_string(::getpid()));
  void SetUp() override { write_tiny_corpus(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  RunOptions options() const {
    RunOptions o;
    o.conditions = {find_scale("tiny"), folder_ / "corpus", {}, {}, 1, "cpu"};
    o.output = folder_ / "out";
    o.progress = false;
    return o;
  }
};

TEST_F(Rivals, Recipe_RunsFromTrainingToPage) {
  const Recipe recipe = recipe_of(read_recipe(small_rivals(), "small-rivals.toml"));
  const RecipeRun run = run_recipe(recipe, options());
  EXPECT_EQ(run.unfinished, 0);
  const std::string unmeasured = find_recipe("parity").judge(options().conditions, Results(1, {})).front().reason;
  ASSERT_FALSE(unmeasured.empty());
  for (const Finding& f : run.findings) {
    EXPECT_TRUE(f.estimate || f.verdict == Verdict::open) << f.claim;
    EXPECT_THAT(f.reason, testing::Not(HasSubstr(unmeasured))) << f.claim;
    // A value may be missing because no sink can be removed or because a slow training has no validation at such an
    // early time.
    const bool may_be_missing =
        f.claim.find("ink") != std::string::npos || f.claim.find("at equal time") != std::string::npos;
    if (!may_be_missing) {
      EXPECT_TRUE(f.estimate) << f.claim << ": " << f.reason;
    }
  }
  // The page is written from the records alone.
  const RecipeRun found = judge_finished(recipe, options());
  const fs::path page = folder_ / "pages" / "rivals.md";
  fs::create_directories(page.parent_path());
  write_page(found, page);
  const std::string text = read_file(page);
  for (const char letter : {'a', 'b', 'c', 'd', 'e', 'f'}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("\n## ({}) ", letter)));
    EXPECT_THAT(text, HasSubstr(fmt::format("\n| ({}) ", letter))) << "a primary claim";
  }
  const auto chosen = choice(found);
  ASSERT_TRUE(chosen);
  EXPECT_TRUE(chosen->table.rows.empty()) << "the table is empty because each model has only one seed";
  EXPECT_THAT(text, HasSubstr("\n## " + chosen->title + "\n"));
  size_t pictures = 0;
  for (const ResultTable& table : result_tables(found)) {
    EXPECT_EQ(table.rows.size(), std::size(kModels)) << table.title;
    EXPECT_FALSE(table.figures.empty()) << table.title;
    for (const auto& row : table.rows) {
      for (const std::string& cell : row) EXPECT_NE(cell, "–") << table.title << ", " << row.front();
    }
    for (const Figure& figure : table.figures) {
      EXPECT_THAT(text, HasSubstr(fmt::format("]({})\n", figure.file)));
      EXPECT_THAT(read_file(page.parent_path() / figure.file), testing::StartsWith("<svg "));
      ++pictures;
    }
  }
  EXPECT_GT(pictures, 0u);
  EXPECT_THAT(to_html(found), HasSubstr(chosen->title));

  // A training whose last checkpoint and record are removed resumes from the previous checkpoint and gives the same
  // weights.
  for (const StepRun& s : run.steps) {
    if (s.step.kind != StepKind::train) continue;
    SCOPED_TRACE(s.step.id);
    const std::string weights = read_file(s.folder / "run/model/model.safetensors");
    ASSERT_TRUE(fs::exists(s.folder / "run/checkpoints/step-00000002/state.json"));
    EXPECT_EQ(fs::remove_all(s.folder / "run/checkpoints/step-00000004") > 0, true);
    fs::remove_all(s.folder / "run/model");
    fs::remove(s.folder / "record.json");
    RunOptions one = options();
    one.only = {s.step.id};
    run_recipe(recipe, one);
    EXPECT_EQ(read_file(s.folder / "run/model/model.safetensors"), weights);
  }
}

// Made-up held-out losses and excess sinks for several seeds.
RecipeRun with_values(const std::map<std::string, std::pair<double, double>>& values, int64_t seeds) {
  RecipeRun run{&find_recipe("rivals"), {find_scale("small"), {}, {}, {}, seeds, "cuda"}, {}, {}, "", "2026-01-02"};
  for (Step& step : run.recipe->plan(run.conditions)) run.steps.push_back({step, {}, {}, "", false});
  constexpr double spread[] = {0.003, -0.002, -0.001};
  for (StepRun& s : run.steps) {
    const std::string model = s.step.model.substr(0, s.step.model.find(".seed"));
    const auto found = values.find(model);
    if (found == values.end()) continue;
    const int64_t seed = s.step.model == model ? 1 : std::stoll(s.step.model.substr(model.size() + 5));
    const double shift = spread[seed - 1];
    if (s.step.kind == StepKind::heldout)
      s.record = {{"seconds", 1}, {"values", {{"loss", {found->second.first + shift}}}}};
    if (s.step.kind == StepKind::sinks)
      s.record = {{"seconds", 1}, {"values", {{"excess", {found->second.second * (1 + 10 * shift)}}}}};
  }
  return run;
}

TEST(RivalsPage, Choice_FollowsFromTheSeeds) {
  const auto chosen = [](const std::map<std::string, std::pair<double, double>>& values, int64_t seeds) {
    return choice(with_values(values, seeds)).value();
  };
  // The expected columns are: criterion, mean of the leader, leader, models without a significant difference from it.
  const std::map<std::string, std::pair<double, double>> gate{
      {"softmax", {3.3, 0.06}}, {"lazy", {3.2, 0.01}}, {"gated", {3.1, 0.02}}};
  EXPECT_THAT(chosen(gate, 3).table.rows, ElementsAre(ElementsAre("held-out loss", "3.1 nats per token", "gated", "–"),
                                                      ElementsAre("excess sink", "0.01 share of weight", "lazy", "–")));
  EXPECT_THAT(chosen(gate, 3).paragraphs,
              Contains(Names({"gated", "lazy", std::string("held-out loss"), std::string("excess sink")})));
  EXPECT_THAT(chosen(gate, 3).paragraphs.back(), Names({"elastic", "off-by-one", "softpick", "learned-sink"}))
      << "the page names the models without records";
  EXPECT_THAT(to_markdown(with_values(gate, 3)), HasSubstr("| softmax | 3.3 [3.293, 3.307] |"))
      << "intervals over seeds";
  EXPECT_THAT(chosen({{"softmax", {3.3, 0.06}}, {"lazy", {3.1, 0.01}}, {"gated", {3.2, 0.02}}}, 3).table.rows,
              ElementsAre(ElementsAre("held-out loss", "3.1 nats per token", "lazy", "–"),
                          ElementsAre("excess sink", "0.01 share of weight", "lazy", "–")));
  EXPECT_THAT(chosen({{"lazy", {3.1, 0.01}}, {"gated", {3.1, 0.01}}}, 3).table.rows,
              ElementsAre(ElementsAre("held-out loss", "3.1 nats per token", "lazy", "gated"),
                          ElementsAre("excess sink", "0.01 share of weight", "lazy", "gated")));
  EXPECT_THAT(chosen({{"lazy", {3.1, 0.01}}, {"gated", {3.2, 0.02}}}, 1).table.rows, IsEmpty());
  EXPECT_THAT(chosen({}, 3).table.rows, IsEmpty());
}

TEST(RivalsPage, MistakesInFile_AreNamedInTheError) {
  const auto names = [](const std::string& more, std::initializer_list<Token> tokens) {
    const std::string found = error_of(
        [&] { read_recipe("[recipe]\ntitle = \"t\"\nsource = \"s\"\nmodels = [\"lazy\"]\n" + more, "own.toml"); });
    EXPECT_THAT(found, Names({"own.toml"}));
    EXPECT_THAT(found, Names(tokens)) << more;
  };
  const std::string figure = "[[figure]]\ntable = \"T\"\nfile = \"f\"\ntitle = \"t\"\nx_label = \"x\"\n";
  names(figure, {"figure", 1, "values", "x", "y", 0});
  names(figure + "values = \"loss\"\n", {"figure", 1, "table", "T"});
  names("[[criterion]]\nname = \"n\"\nmeasure = \"loss\"\nbetter = \"best\"\n", {"better", "lower", "higher", "best"});
  names("[[measure]]\nname = \"n\"\nstep = \"s\"\npath = \"p\"\nminus = \"m\"\nper = \"q\"\n",
        {"measure", 1, "minus", "per"});
}

}  // namespace
}  // namespace lazy::repro
