// Tests the plans of the recipes, without training, and their reports.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/file.h"
#include "repro/configs.h"
#include "repro/cost.h"
#include "repro/report.h"
#include "support/error_of.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;

Conditions at(const std::string& scale) { return {find_scale(scale), {}, {}, {}, 1, "cpu"}; }

TEST(Recipes, Plans_TrainEveryMeasuredModel) {
  const TemporaryFolder configs;
  write_configs(configs.path);
  for (const Recipe& recipe : recipes()) {
    for (const Scale& scale : scales()) {
      SCOPED_TRACE(recipe.name + " " + scale.name);
      std::set<std::string> ids, trained;
      const Conditions conditions{scale, {}, {}, {{"code", "src"}}, 2, "cpu"};
      for (const Step& step : recipe.plan(conditions)) {
        EXPECT_TRUE(ids.insert(step.id).second) << step.id << " comes twice";
        if (step.kind == StepKind::train) {
          trained.insert(step.id);
          const auto config = train_config(step, configs.path, "corpus", "run");
          EXPECT_GT(config.steps, 0);
        } else if (!step.model.empty()) {
          EXPECT_TRUE(trained.contains(step.model)) << step.id;
        }
      }
      EXPECT_GT(cost(recipe, conditions, configs.path).seconds, 0);
    }
  }
}

TEST(Recipes, Cost_IsProportionalToTrainingTokens) {
  const TemporaryFolder configs;
  const Conditions conditions{find_scale("small"), {}, {}, {}, 1, "cuda"};
  const auto of_steps = [&](int64_t steps) {
    Plan plan(conditions);
    plan.train({"softmax", "transformer", {fmt::format("training.steps={}", steps)}}).measure(StepKind::heldout);
    return cost(plan.steps(), conditions, configs.path);
  };
  const Cost one = of_steps(1000), two = of_steps(2000), three = of_steps(3000);
  EXPECT_DOUBLE_EQ(two.tokens, 2 * one.tokens);
  EXPECT_DOUBLE_EQ(three.tokens, 3 * one.tokens);
  const double seconds = two.seconds - one.seconds;  // training time only, because the measurement is equal
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(three.seconds - two.seconds, seconds, 1e-6 * seconds);
  EXPECT_NEAR((two.tokens - one.tokens) / seconds, one.models.at(0).tokens_per_second,
              1e-6 * one.models.at(0).tokens_per_second);
}

TEST(Recipes, Cost_IsTheSumOverModels) {
  const TemporaryFolder configs;
  const Conditions conditions{find_scale("small"), {}, {}, {}, 1, "cuda"};
  for (const char* recipe : {"table1", "table2", "parity"}) {
    const Cost all = cost(find_recipe(recipe), conditions, configs.path);
    double tokens = 0, seconds = 0;
    int64_t trainings = 0;
    for (const ModelCost& m : all.models) {
      tokens += m.tokens;
      seconds += m.training + m.measuring;
      trainings += m.trainings;
    }
    EXPECT_NEAR(tokens, all.tokens, 1e-6 * all.tokens) << recipe;
    EXPECT_NEAR(seconds, all.seconds, 1e-6 * all.seconds) << recipe;
    EXPECT_EQ(trainings, all.trainings) << recipe;
  }
  const Cost one = cost(find_recipe("table1"), conditions, configs.path);
  const auto model = [&](const char* id) {
    const auto found =
        std::find_if(one.models.begin(), one.models.end(), [&](const ModelCost& m) { return m.model == id; });
    EXPECT_NE(found, one.models.end()) << id;
    return found == one.models.end() ? ModelCost{} : *found;
  };
  EXPECT_EQ(model("ttt-linear").trainings, 3) << "two trial runs and the final training run";
  EXPECT_GT(model("ttt-linear").tokens, model("lazy").tokens);
}

// A file of configs/ that extends this composed configuration.
train::TrainConfig shipped_config(const std::string& composed) {
  const TemporaryFolder folder;
  fs::copy(fs::path(LAZY_SOURCE_DIR) / "configs", folder.path, fs::copy_options::recursive);
  write_file_atomic(folder.path / "run.toml", fmt::format("extends = \"{}\"\n", composed));
  return train::TrainConfig::load(folder.path / "run.toml", {"data.corpus=corpus"});
}

TEST(Recipes, PaperScale_EqualsShippedConfigurations) {
  const TemporaryFolder configs;
  write_configs(configs.path);
  // (model of the recipe, shipped model and recipe)
  const std::pair<const char*, const char*> shipped[] = {
      {"lazy", "models/lazy-340m.toml+recipes/15b.toml"},
      {"softmax", "models/transformer-340m.toml+recipes/15b.toml"},
      {"softmax-rope150k", "models/transformer-340m.toml+recipes/15b.toml+rope150k"},
      {"no-elastic", "models/lazy-340m.toml+recipes/15b.toml+no-elastic"},
      {"no-positional", "models/lazy-340m.toml+recipes/15b.toml+no-positional"},
      {"sigmoid", "models/sigmoid-340m.toml+recipes/15b.toml"},
      {"gated-deltanet", "models/gated-deltanet-340m.toml+recipes/15b.toml"},
      {"titans-mag", "models/titans-mag-340m.toml+recipes/15b.toml"},
      {"gated-deltanet-760m", "models/gated-deltanet-760m.toml+recipes/30b.toml"},
      {"retnet-760m", "models/retnet-760m.toml+recipes/30b.toml"},
      {"mamba2-760m", "models/mamba2-760m.toml+recipes/30b.toml"},
      {"deltanet-760m", "models/deltanet-760m.toml+recipes/30b.toml"},
      {"ttt-linear-760m", "models/ttt-linear-760m.toml+recipes/30b.toml"},
      {"titans-lmm-760m", "models/titans-lmm-760m.toml+recipes/30b.toml"},
      {"lazy-760m", "models/lazy-760m.toml+recipes/30b.toml"},
      {"softmax-760m", "models/transformer-760m.toml+recipes/30b.toml"}};
  size_t compared = 0;
  for (const Step& step : find_recipe("table1").plan(at("paper"))) {
    for (const auto& [id, file] : shipped) {
      if (step.id != id) continue;
      ++compared;
      const auto ours = train_config(step, configs.path, "corpus", "run");
      const auto theirs = shipped_config(file);
      EXPECT_EQ(ours.settings(), theirs.settings()) << id;
      EXPECT_EQ(ours.model.to_json(), theirs.model.to_json()) << id;
    }
  }
  EXPECT_EQ(compared, std::size(shipped));
}

TEST(Recipes, MixersOfTable1_HaveAsManyParametersAsTransformer) {
  const TemporaryFolder configs;
  write_configs(configs.path);
  for (const char* scale : {"tiny", "small"}) {
    std::map<std::string, ModelConfig> models;
    std::set<std::string> with_sinks, streaming;
    for (const Step& step : find_recipe("table1").plan(at(scale))) {
      if (step.kind == StepKind::train)
        models[step.id] = train_config(step, configs.path, "corpus", "run", {"model.vocab_size=2048"}).model;
      if (step.kind == StepKind::sinks) with_sinks.insert(step.model);
      if (step.settings.contains("cache"))
        streaming.insert(step.model + " " + step.settings["cache"].get<std::string>());
    }
    const auto wanted = static_cast<double>(count_parameters(models.at("softmax")).total);
    for (const char* name :
         {"retnet", "mamba2", "deltanet", "gated-deltanet", "ttt-linear", "titans-mag", "titans-lmm"}) {
      const ModelConfig& model = models.at(name);
      EXPECT_FALSE(model.all_attention()) << name;
      EXPECT_NEAR(static_cast<double>(count_parameters(model).total) / wanted, 1, 0.03) << scale << " " << name;
      EXPECT_FALSE(with_sinks.contains(name)) << name << " has no attention weights to measure";
    }
    EXPECT_TRUE(with_sinks.contains("softmax"));
    EXPECT_EQ(streaming, std::set<std::string>{std::string("softmax streaming:4+") +
                                               (std::string(scale) == "tiny" ? "28" : "60")});
  }
}

TEST(Recipes, GivenModel_ReplacesItsTraining) {
  Conditions conditions = at("small");
  conditions.models = {{"lazy", "runs/lazy"}, {"gpt2", "models/gpt2"}};
  conditions.corpus = "corpus";
  std::map<std::string, Step> steps;
  for (const Step& step : find_recipe("fig7").plan(conditions))
    EXPECT_TRUE(steps.emplace(step.id, step).second) << step.id << " comes twice";
  EXPECT_EQ(given_folder(steps.at("lazy")), fs::absolute("runs/lazy"));
  EXPECT_EQ(given_folder(steps.at("softmax-rope150k")), fs::path());
  EXPECT_EQ(steps.at("lazy.repetition").model, "lazy")
      << "the given model is measured on the corpus, like a trained model";
  EXPECT_EQ(steps.at("gpt2.repetition").model, "");
  EXPECT_EQ(steps.at("gpt2.repetition").settings.at("corpus"), fs::absolute("corpus").string())
      << "without --text the held-out text of the corpus is used";
  const TemporaryFolder configs;
  EXPECT_EQ(cost(find_recipe("fig7"), conditions, configs.path).trainings, 1);
  conditions.seeds = 2;
  EXPECT_THAT(error_of([&] { find_recipe("fig7").plan(conditions); }), Names({"--model", "--seeds", 1, 2}));
}

TEST(Recipes, UnknownName_SuggestsTheNearest) {
  // The suggestion is quoted; the list of all names is not.
  EXPECT_THAT(error_of([] { find_recipe("tabel1"); }), Names({"tabel1", "'table1'"}));
  EXPECT_THAT(error_of([] { find_scale("tinny"); }),
              IsMessage("repro: --scale: expected tiny, small or paper, found 'tinny'; did you mean 'tiny'?"));
}

TEST(Recipes, Table2_EqualsShippedConfigurations) {
  const TemporaryFolder configs;
  write_configs(configs.path);
  const std::map<std::string, const char*> shipped{{"softmax", "softmax"},
                                                   {"sparsemax", "sparsemax"},
                                                   {"entmax15", "entmax15"},
                                                   {"elastic-constant", "elastic-constant"},
                                                   {"tau0.0", "elastic-from-0"},
                                                   {"elastic", "elastic"},
                                                   {"elastic-fixed", "elastic-fixed"}};
  size_t compared = 0;
  for (const Step& step : find_recipe("table2").plan(at("paper"))) {
    if (step.kind != StepKind::train) continue;
    ++compared;
    const auto ours = train_config(step, configs.path, "corpus", "run");
    const auto theirs = shipped_config(fmt::format("table2.toml+{}", shipped.at(step.id)));
    EXPECT_EQ(ours.settings(), theirs.settings()) << step.id;
    EXPECT_EQ(ours.model.to_json(), theirs.model.to_json()) << step.id;
  }
  EXPECT_EQ(compared, shipped.size());
}

// Table 2 has four measures: loss, average score, density, sink ratio. The score is the mean of the headline metrics of
// the tasks.
TEST(Report, Report_HasMeasuresAndAverageScore) {
  RecipeRun run{&find_recipe("table2"), at("tiny"), {}, {}, "lazy repro table2 --scale tiny", "2026-01-01"};
  const auto done = [&](const std::string& id, StepKind kind, Json values) {
    run.steps.push_back({.step = {.id = id, .kind = kind}, .record = {{"values", std::move(values)}, {"seconds", 1}}});
  };
  done("softmax", StepKind::train, {{"parameters", 1000}, {"tokens", 2000}, {"tokens_per_second", 300}});
  done("sparsemax", StepKind::train, {{"parameters", 1000}, {"tokens", 2000}, {"tokens_per_second", 300}});
  done("softmax.heldout", StepKind::heldout, {{"loss", {2, 3}}});
  const auto metric = [](double value) { return Json{{"value", value}, {"n", 100}}; };
  done("softmax.tasks", StepKind::tasks,
       {{"hellaswag", {{"acc", metric(0.9)}, {"acc_norm", metric(0.25)}}},
        {"boolq", {{"acc", metric(0.5)}}},
        {"wikitext", {{"word_perplexity", metric(34.5)}}}});
  const auto rows = measured_rows(run);
  ASSERT_EQ(rows.size(), 2u);
  for (const MeasuredRow& row : rows) ASSERT_EQ(row.cells.size(), kMeasuredColumns.size());
  EXPECT_EQ(rows[0].cells[3], "2.5000");
  EXPECT_EQ(rows[0].cells[8], "34.50");
  EXPECT_EQ(rows[0].cells[9], "37.50 % of 2");
  EXPECT_EQ(rows[1].cells[9], "–");
  EXPECT_THAT(to_markdown(run), HasSubstr("| 37.50 % of 2 |"));
}

TEST(Report, Report_HasClaimIntervalScaleAndVerdict) {
  RecipeRun run{&find_recipe("table1"), at("tiny"), {}, {}, "lazy repro table1 --scale tiny", "2026-01-01"};
  TestedClaim claim{{.claim = "A | B is below C",
                     .paper = "2.62 against 2.64",
                     .models = "a, b",
                     .unit = "nats per token",
                     .over = "seeds"},
                    Rule{below(0)}};
  claim.finding.estimate = over_units({-0.25, -0.375, -0.125}, below(-10));
  TestedClaim untested{{.claim = "not <tested>", .paper = "said", .reason = "no --data DIR was given"}, {}};
  run.findings = judge_page({claim, untested});
  run.findings[0].verdict = Verdict::reproduced;
  const std::string markdown = to_markdown(run), html = to_html(run);
  EXPECT_THAT(markdown, HasSubstr(fmt::format("| A \\| B is below C | 2.62 against 2.64 | -0.25 [-0.5605, 0.06052] "
                                              "nats per token | {} | 0.0742 | {} |",
                                              over_text(run.findings[0]), verdict_text(run.findings[0], run))));
  EXPECT_THAT(over_text(run.findings[0]), Names({3, "seeds"}));
  EXPECT_THAT(verdict_text(run.findings[0], run), Names({"reproduced", "tiny", "a", "b"}));
  EXPECT_THAT(summary(run), Names({1, "reproduced", 0, "refuted", "open"}));
  EXPECT_THAT(markdown, HasSubstr("| Titans 760M | 20.04 | 21.96 |"));
  EXPECT_THAT(cautions(run), Names({"tiny"}));
  EXPECT_THAT(html, HasSubstr("not &lt;tested&gt;"));
  EXPECT_THAT(html, testing::Not(HasSubstr("http://")));
  const Json json = to_json(run);
  EXPECT_EQ(json["findings"][0]["verdict"], "reproduced");
  EXPECT_NEAR(json["findings"][0]["ours"]["low"].get<double>(), -0.560517, 1e-6);
  EXPECT_EQ(json["findings"][0]["scale"], "tiny");
  EXPECT_EQ(json["findings"][0]["models"], "a, b");
  EXPECT_EQ(json["scale"], "tiny");
  for (const Json& row : json["published"]) {
    EXPECT_FALSE(row["cited"].get<bool>()) << row["row"] << ": this recipe trains the model of every row";
    EXPECT_FALSE(row["model"].get<std::string>().empty()) << row["row"];
  }
}

}  // namespace
}  // namespace lazy::repro
