// Experiments on models with random weights and on toys: compares their numbers with the definitions and tests the
// recipes that use them.
#include "repro/experiments/toys.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/statistics.h"
#include "experiment_folder.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/mixers/mixer.h"
#include "repro/experiments/toy_model.h"
#include "repro/pictures.h"
#include "sinks/positional_signal.h"
#include "support/error_of.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;

class Studies : public testing::Test {
 protected:
  const ExperimentFolder files_;
  const fs::path folder_ = files_.path;
  ExperimentInputs experiment(const char* name, const Json& more = Json::object()) const {
    return files_.experiment(name, more);
  }
  RecipeRun run(const char* recipe) const {
    RecipeRun done = run_recipe(find_recipe(recipe), files_.options());
    write_report(done, folder_ / "report");
    return done;
  }
};

TEST_F(Studies, Gamma_MatchesItsDefinition) {
  const Json values = run_recipe_experiment(experiment("gamma"));
  LanguageModel model = LanguageModel::load(folder_ / "model");
  ASSERT_EQ(values.at("gamma").size(), 3u);
  for (int64_t layer = 0; layer < 3; ++layer) {
    const AttentionProjections p = model.projections(layer);
    const at::Tensor gamma = at::matmul(p.k.to(at::kDouble).t(), p.q_bias.to(at::kDouble)).abs();
    const Json& ours = values.at("gamma").at(static_cast<size_t>(layer));
    for (size_t d = 0; d < 24; ++d)
      EXPECT_NEAR(ours.at("all").at(d).get<double>(), gamma[static_cast<int64_t>(d)].item<double>(), 1e-9);
    EXPECT_NEAR(ours.at("mean").get<double>(), gamma.mean().item<double>(), 1e-9);
    EXPECT_NEAR(ours.at("std").get<double>(), gamma.std(false).item<double>(), 1e-9);
  }
}

TEST_F(Studies, GammaRecipe_OnAnotherShapeIsOpen) {
  const RecipeRun done = run("gpt2-gamma");
  ASSERT_FALSE(done.findings.empty());
  for (const Finding& f : done.findings)
    EXPECT_TRUE(f.verdict == Verdict::open || f.verdict == Verdict::not_testable)
        << f.claim << ": " << f.reason;  // three layers are also too few for a sign test
  std::ifstream page(folder_ / "report" / "gpt2-gamma.html");
  const std::string html((std::istreambuf_iterator<char>(page)), {});
  const auto has = [&](const char* part) {
    return html.find(part) != std::string::npos;
  };  // EXPECT_THAT would print the whole page
  EXPECT_TRUE(has("<section id=\"gamma\">"));
  EXPECT_TRUE(has("22.226"));
  EXPECT_EQ(to_json(done).at("findings").at(0).at("scale"), "") << "nothing was trained";
  EXPECT_FALSE(has("12.453")) << "the model has three layers, so layer 7 is missing";
}

TEST_F(Studies, Pages_HaveTheirFigures) {
  for (const auto& [recipe, section] :
       {std::pair{"gpt2-epe", "epe"}, {"fig3", "maps"}, {"table4", "tables"}, {"table5", "tables"}}) {
    const RecipeRun done = run(recipe);
    const std::string html = to_html(done);
    EXPECT_NE(html.find(fmt::format("<section id=\"{}\">", section)), std::string::npos) << recipe;
    for (const Finding& f : done.findings) {
      EXPECT_TRUE(f.estimate) << recipe << ": " << f.claim;
      EXPECT_EQ(f.models, "model") << recipe << ": the default name of a model passed by --model";
    }
  }
}

// Three seeds of a toy without training; the statistical unit is the seed.
TEST(Toys, Claims_AreJudgedOverSeeds) {
  std::map<std::string, Json> values;
  for (int seed = 0; seed < 4; ++seed) {
    const double s = 0.01 * seed;
    std::vector<double> distance(100, 1.0 + s), received(100, 0.2);
    for (size_t t = 0; t < 50; ++t) distance[t] = 2 + s, received[t] = 0.21 + s;
    values[fmt::format("unigram.bos.seed{}", seed)] = {{"to_bos", std::vector<double>(8, 0.5 + s)},
                                                       {"uniform_share", 0.2},
                                                       {"distance", distance},
                                                       {"received", received},
                                                       {"losses", {3.7 + s, 3.8 + s}},
                                                       {"floor", 3.681}};
  }
  const Conditions conditions{find_scale("tiny"), {}, {}, {}, 1, "cpu"};
  std::map<std::string, Finding> found;
  for (const Finding& f : find_recipe("toy-unigram").judge(conditions, Results(1, values))) found[f.claim] = f;
  const auto about = [&](const char* words) {
    for (const auto& [claim, f] : found) {
      if (claim.find(words) != std::string::npos) return f;
    }
    ADD_FAILURE() << words;
    return Finding{};
  };
  const Finding weight = about("with BOS: BOS receives more than an equal share");
  EXPECT_EQ(weight.verdict, Verdict::reproduced);
  EXPECT_EQ(weight.estimate->by_unit.size(), 4u)
      << "the experiment uses at least four seeds, even if --seeds is smaller";
  EXPECT_NEAR(weight.estimate->value, 0.315, 1e-12);
  EXPECT_EQ(about("lie nearer to BOS").verdict, Verdict::reproduced);
  EXPECT_NEAR(about("lie nearer to BOS").estimate->by_unit.at(0), (2.0 - 1.0) / 1.5, 1e-12);
  EXPECT_EQ(about("infrequent tokens receive more attention").verdict, Verdict::open);
  EXPECT_NEAR(about("unigram bos: held-out loss").estimate->value, 3.765 - 3.681, 1e-12);
  EXPECT_EQ(about("unigram plain: held-out loss").verdict, Verdict::open);
}

// Without weight on BOS, a softmax head cannot output zero; the other heads can. A few steps take seconds.
TEST(Triggers, OnlySoftmax_NeedsASink) {
  const auto run = [](const char* normalizer, bool gate) {
    return run_recipe_experiment({.settings = {{"study", "trigger"},
                                               {"normalizer", normalizer},
                                               {"gate", gate},
                                               {"seed", 0},
                                               {"steps", 500},
                                               {"length", 10},
                                               {"content", 4},
                                               {"width", 8},
                                               {"batch", 64},
                                               {"rate", 0.01}},
                                  .progress = false});
  };
  std::map<std::string, Json> values;
  for (const auto& [variant, normalizer] : {std::pair{"softmax", "softmax"}, {"relu", "relu"}, {"gated", "softmax"}}) {
    values[fmt::format("trigger.{}.seed0", variant)] = run(normalizer, variant == std::string("gated"));
    const Json& of = values.at(fmt::format("trigger.{}.seed0", variant));
    EXPECT_LT(of.at("curve").back().at("error").get<double>(), 0.5 * of.at("curve").front().at("error").get<double>());
    for (const Json& row : of.at("maps").at(0)) EXPECT_EQ(row.size(), 10u);
    const double largest = of.at("triggers").at(0).get<double>();
    EXPECT_TRUE(largest >= 5 && largest < 10);
  }
  const auto weight_on_bos = [&](const char* variant) {
    return mean_of(values.at(fmt::format("trigger.{}.seed0", variant)).at("to_bos").get<std::vector<double>>());
  };
  EXPECT_GT(weight_on_bos("softmax"), 0.7);
  EXPECT_LT(weight_on_bos("relu"), 0.2);
  const Conditions conditions{find_scale("tiny"), {}, {}, {}, 1, "cpu"};
  int measured = 0;
  for (const Finding& f : find_recipe("toy-trigger").judge(conditions, Results(1, values)))
    measured += bool(f.estimate);
  EXPECT_EQ(measured, 6) << "two claims for each of three kinds of heads";
  EXPECT_NE(draw_picture("toy-trigger", Results(1, values), {}).find("<section id=\"triggers\">"), std::string::npos);
  EXPECT_THAT(error_of([&] { run("soft", false); }), Names({"trigger", "relu", "soft"}));
}

TEST_F(Studies, Delta_SumsOverHeads) {
  const Json values = run_recipe_experiment(experiment("delta", {{"texts", 9}, {"length", 32}}));
  EXPECT_EQ(values.at("texts"), 9);
  for (const Json& layer : values.at("by_layer")) {
    double heads = 0;
    for (const Json& v : layer.at("first_by_head")) heads += v.get<double>();
    EXPECT_NEAR(heads, mean_of(layer.at("first").get<std::vector<double>>()), 1e-9)
        << "`first` must be the sum over heads";
    double counted = 0;
    for (const Json& n : layer.at("histogram").at("others")) counted += n.get<double>();
    EXPECT_EQ(counted, 9 * 31);
  }
}

TEST_F(Studies, Interventions_AreComparedTextByText) {
  const Json values = run_recipe_experiment(
      experiment("interventions", {{"texts", 10}, {"few_texts", 8}, {"length", 24}, {"random_pairs", 2}}));
  const Recipe& recipe = find_recipe("gpt2-interventions");
  Conditions conditions{find_scale("tiny"), {}, {}, {}, 1, "cpu"};
  conditions.models = {{"gpt2", "folder"}};
  const Results results(1, {{"gpt2.interventions", values}});
  const auto findings = recipe.judge(conditions, results);
  EXPECT_FALSE(findings.empty());
  const auto first = [&](const char* condition, size_t text) {
    return mean_of(values.at("conditions").at(condition).at("first").at(text).get<std::vector<double>>());
  };
  for (const Finding& f : findings) {
    ASSERT_TRUE(f.estimate) << f.claim;
    const bool control = f.claim.find("control") != std::string::npos;
    EXPECT_EQ(f.estimate->by_unit.size(), control ? 8u : 10u) << f.claim;
    EXPECT_EQ(f.models, "gpt2");
    if (f.claim.starts_with("intervention 1")) {
      EXPECT_NEAR(f.estimate->by_unit.at(3), first("1", 3) - 0.5 * first("none", 3), 1e-12);
    }
  }
  EXPECT_NE(recipe.pictures(results).find("<section id=\"interventions\">"), std::string::npos);
  const Results deltas(1, {{"gpt2.delta", run_recipe_experiment(experiment("delta", {{"texts", 9}, {"length", 24}}))}});
  for (const Finding& f : find_recipe("gpt2-delta").judge(conditions, deltas)) EXPECT_TRUE(f.estimate) << f.claim;
  EXPECT_NE(find_recipe("gpt2-delta").pictures(deltas).find("<section id=\"delta\">"), std::string::npos);
}

TEST_F(Studies, Interventions_OnRandomWeights) {
  const Json values = run_recipe_experiment(
      experiment("interventions", {{"texts", 4}, {"few_texts", 2}, {"length", 24}, {"random_pairs", 2}}));
  const auto& conditions = values.at("conditions");
  for (const char* name : {"none", "1", "2", "3", "4", "5", "2'", "3'"}) {
    ASSERT_EQ(conditions.at(name).at("first").size(), 4u) << name;
    ASSERT_EQ(conditions.at(name).at("map").size(), 3u) << name;
    const Json& map = conditions.at(name).at("map").at(1);
    for (size_t i = 0; i < 24; ++i) {
      double sum = 0;
      for (const Json& w : map.at(i)) sum += w.get<double>();
      EXPECT_NEAR(sum, 1, 1e-5);
    }
    if (std::string(name) != "none") {
      EXPECT_NE(conditions.at(name).at("first"), conditions.at("none").at("first")) << name;
    }
  }
  // The first layer precedes the change, so its attention does not change.
  for (size_t text = 0; text < 4; ++text)
    EXPECT_EQ(conditions.at("2").at("first").at(text).at(0), conditions.at("none").at("first").at(text).at(0));
  EXPECT_EQ(values.at("single").at("1").size(), 3u);
  EXPECT_EQ(values.at("single").at("2").size(), 2u);
  EXPECT_EQ(values.at("control").size(), 2u);
  // The experiment restores the weights: repeating it gives the same numbers.
  EXPECT_EQ(run_recipe_experiment(
                experiment("interventions", {{"texts", 4}, {"few_texts", 2}, {"length", 24}, {"random_pairs", 2}})),
            values);
}

TEST_F(Studies, Repetition_WithUniformScoresIsUniform) {
  LanguageModel model = LanguageModel::load(folder_ / "model");
  const at::NoGradGuard guard;
  for (int64_t layer = 0; layer < 3; ++layer)
    model.projections(layer).q.zero_(), model.projections(layer).q_bias.zero_();
  model.save(folder_ / "model");
  const Json values = run_recipe_experiment(experiment("repetition", {{"texts", 3}, {"length", 40}}));
  for (const char* input : {"natural", "repeated"}) {
    for (const Json& text : values.at(input).at("sink")) {
      for (const Json& layer : text) EXPECT_NEAR(layer.get<double>(), values.at("uniform").get<double>(), 1e-6);
    }
  }
}

// The bytes tokenizer has a BOS token. The expected values are computed from the attention weights with plain loops.
TEST_F(Studies, Mask_MatchesAttentionWeights) {
  const Json values = run_recipe_experiment(experiment("mask", {{"texts", 3}, {"length", 20}, {"position", 4}}));
  LanguageModel model = LanguageModel::load(folder_ / "model");
  const auto tokenizer = load_tokenizer((folder_ / "model").string());
  auto texts = texts_without_bos(experiment("mask"), 3, 20);
  std::vector<double> alpha(20);
  for (size_t n = 0; n < 3; ++n) {
    texts[n][3] = *tokenizer->bos_id();
    double first = 0, masked = 0, sink_first = 0, sink_masked = 0;
    ActivationHooks probes;
    probes.read("layers.*.attention.weights", [&](const std::string&, const at::Tensor& weights) {
      for (int64_t h = 0; h < 4; ++h) {
        const auto w = [&](int64_t i, int64_t j) { return weights[0][h][i][j].item<double>(); };
        for (int64_t i = 4; i < 20; ++i) first += w(i, 0) / (3 * 4 * 16), masked += w(i, 3) / (3 * 4 * 16);
        for (int64_t j = 0; j < 20; ++j) {
          double received = 0;
          for (int64_t i = j; i < 20; ++i) received += w(i, j) / double(20 - j);
          alpha[static_cast<size_t>(j)] += received / (3 * 3 * 4);
          if (j == 0) sink_first += received > 0.3 ? 1.0 / 12 : 0;
          if (j == 3) sink_masked += received > 0.3 ? 1.0 / 12 : 0;
        }
      }
    });
    ForwardOptions options;
    options.activation_hooks = &probes;
    model.forward(at::tensor(texts[n], at::kLong).unsqueeze(0), options);
    EXPECT_NEAR(values.at("first").at(n).get<double>(), first, 1e-6);
    EXPECT_NEAR(values.at("masked").at(n).get<double>(), masked, 1e-6);
    EXPECT_NEAR(values.at("sink_first").at(n).get<double>(), sink_first, 1e-9);
    EXPECT_NEAR(values.at("sink_masked").at(n).get<double>(), sink_masked, 1e-9);
  }
  for (size_t j = 0; j < 20; ++j) EXPECT_NEAR(values.at("alpha").at(j).get<double>(), alpha[j], 1e-6);
  double even = 0;
  for (int i = 5; i <= 20; ++i) even += 1.0 / i / 16;
  EXPECT_NEAR(values.at("even").get<double>(), even, 1e-12);
  EXPECT_THAT(error_of([&] {
                run_recipe_experiment(experiment("mask", {{"texts", 3}, {"length", 20}, {"position", 20}}));
              }),
              Names({"mask", "position", 1, 19, 20}));
}

TEST_F(Studies, ModelRecipes_RunToTheirPages) {
  for (const char* recipe : {"gpt2-delta", "gpt2-epe", "fig3", "table4", "table7"}) {
    const RecipeRun done = run(recipe);
    EXPECT_FALSE(done.findings.empty()) << recipe;
    EXPECT_GT(fs::file_size(folder_ / "report" / (std::string(recipe) + ".html")), 5000u) << recipe;
  }
  RunOptions options;
  options.conditions = {find_scale("tiny"), {}, {}, {}, 1, "cpu"};
  options.output = folder_ / "out";
  const RecipeRun nothing = run_recipe(find_recipe("gpt2-interventions"), options);
  EXPECT_THAT(nothing.findings.at(0).reason, Names({"--model", "DIR"}));
  options.conditions.models = {{"m", folder_ / "nowhere"}};
  EXPECT_THAT(error_of([&] { run_recipe(find_recipe("gpt2-gamma"), options); }),
              Names({"--model", fmt::format("m={}", (folder_ / "nowhere").string())}));
}

TEST(Toys, Sources_HaveExpectedEntropy) {
  const ToySource unigram = unigram_source(100, 1);
  EXPECT_NEAR(unigram.floor, 3.681, 5e-4);
  EXPECT_NEAR(unigram.first[0].item<double>() / unigram.first[9].item<double>(), 10, 1e-9);
  const ToySource bigram = bigram_source(100, 20, 5);
  EXPECT_TRUE(at::allclose(at::mv(bigram.transitions.t(), bigram.first), bigram.first, 1e-9, 1e-12)) << "stationary";
  double floor = 0;
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t j = 0; j < 100; ++j) {
      const double p = bigram.transitions[i][j].item<double>();
      floor -= bigram.first[i].item<double>() * p * std::log(p);
    }
  }
  EXPECT_NEAR(bigram.floor, floor, 1e-9);
  // The frequency of each drawn token is within five standard errors of its probability.
  const at::Tensor drawn = bigram.sample(20000, 3, at::detail::createCPUGenerator(1));
  const at::Tensor shares = at::bincount(drawn.select(1, 2), {}, 100).to(at::kDouble) / 20000;
  EXPECT_LT(((shares - bigram.first).abs() / (bigram.first / 20000).sqrt()).max().item<double>(), 5);
  const at::Tensor after = drawn.select(1, 2).masked_select(drawn.select(1, 1).eq(drawn[0][1]));
  EXPECT_GT(after.numel(), 20);
}

TEST(Toys, Model_MatchesItsDefinition) {
  for (const bool residual : {false, true}) {
    for (const bool tied : {true, false}) {
      const ToyModel model({7, 3, residual, tied}, 4);
      const at::NoGradGuard guard;
      for (const auto& [name, tensor] : model.parameters()) tensor.mul_(40);
      const at::Tensor ids = at::tensor({1, 4, 4, 0, 6}, at::kLong);
      const auto out = model.forward(ids.unsqueeze(0));
      const auto m = [&](size_t n) { return model.parameters()[n].second.to(at::kDouble); };
      const at::Tensor x = m(0).index_select(0, ids);
      for (int64_t t = 0; t < 5; ++t) {
        at::Tensor y = at::zeros({3}, at::kDouble);
        double total = 0;
        std::vector<double> weights;
        for (int64_t j = 0; j <= t; ++j) {
          weights.push_back(
              std::exp(at::dot(at::matmul(x[t], m(1)), at::matmul(x[j], m(2))).item<double>() / std::sqrt(3.0)));
          total += weights.back();
        }
        for (int64_t j = 0; j <= t; ++j) {
          EXPECT_NEAR(out.weights[0][t][j].item<double>(), weights[static_cast<size_t>(j)] / total, 1e-5);
          y = y + weights[static_cast<size_t>(j)] / total * at::matmul(at::matmul(x[j], m(3)), m(4));
        }
        if (residual) y = y + x[t];
        EXPECT_TRUE(at::allclose(out.logits[0][t].to(at::kDouble), at::matmul(m(tied ? 0 : 5), y), 1e-4, 1e-4));
      }
      EXPECT_EQ(out.weights.triu(1).abs().max().item<double>(), 0);
    }
  }
}

TEST(Toys, ShortTraining_LowersTheLoss) {
  Json settings{{"study", "toy"}, {"data", "unigram"}, {"bos", true},       {"width", 2},           {"residual", false},
                {"tied", true},   {"seed", 1},         {"steps", 400},      {"snapshots", {0, 10}}, {"length", 10},
                {"batch", 64},    {"rate", 0.01},      {"vocabulary", 100}, {"rank", 20},           {"alpha", 1.0}};
  const Json values = run_recipe_experiment({settings, "cpu", false});
  ASSERT_EQ(values.at("snapshots").size(), 3u);
  const auto loss = [&](size_t n) { return values.at("snapshots").at(n).at("loss").get<double>(); };
  EXPECT_NEAR(loss(0), std::log(101.0), 0.02) << "the untrained model predicts a uniform distribution";
  EXPECT_LT(loss(2), 4.0) << "the model has learned most of the token frequencies";
  EXPECT_GT(loss(2), values.at("floor").get<double>() - 0.05);
  EXPECT_EQ(values.at("snapshots").at(0).at("maps").at(0).size(), 11u) << "BOS and ten tokens";
  EXPECT_EQ(values.at("received").size(), 101u);
  EXPECT_EQ(values.at("distance").size(), 100u);
  EXPECT_EQ(values.at("sequences").at(1).at(2), 57) << "the printed sequences";
}

}  // namespace
}  // namespace lazy::repro
