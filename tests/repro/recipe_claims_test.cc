// Tests the findings of recipes on made-up results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "repro/recipe.h"
#include "support/error_of.h"

namespace lazy::repro {
namespace {
using testing::HasSubstr;

Conditions claims_at(const std::string& scale) { return {find_scale(scale), {}, {}, {}, 1, "cpu"}; }

using Values = std::map<std::string, Json>;

// Adds the values of a step for four seeds: a list of eight texts around `value`, with a small deviation per seed.
void add(Values& all, const std::string& model, const std::string& step, const std::string& field, double value) {
  constexpr double deviations[] = {0.0004, -0.0003, 0.0001, -0.0002};
  for (int64_t seed = 1; seed <= 4; ++seed) {
    std::vector<double> texts(8, value * (1 + deviations[seed - 1]));
    for (size_t n = 0; n < texts.size(); ++n) texts[n] += 1e-4 * static_cast<double>(n);
    all[training_id(model, seed) + "." + step][Json::json_pointer("/" + field)] = texts;
  }
}

const Finding& about(const std::vector<Finding>& findings, const std::string& words) {
  for (const Finding& f : findings) {
    if (f.claim.find(words) != std::string::npos) return f;
  }
  ADD_FAILURE() << "no finding about " << words;
  return findings.front();
}

// Reports can be written while steps are unfinished.
TEST(Recipes, Judgments_AreOpenWithoutSteps) {
  for (const Recipe& recipe : recipes()) {
    for (const Scale& scale : scales()) {
      SCOPED_TRACE(recipe.name + " " + scale.name);
      const Conditions conditions{scale, {}, {}, {{"code", "src"}}, 2, "cpu"};
      for (const Finding& f : recipe.judge(conditions, Results(2, {}))) EXPECT_EQ(f.verdict, Verdict::open) << f.claim;
    }
  }
}

TEST(Recipes, Table1_ComparesMixersByPublishedRows) {
  Values values;
  for (const auto& [model, loss] :
       {std::pair{"lazy", 3.0}, {"retnet", 4.0}, {"mamba2", 2.0}, {"softmax", 3.5}, {"streaming", 3.6}})
    add(values, model, "heldout", "loss", loss);
  const auto findings = find_recipe("table1").judge(claims_at("small"), Results(4, values));
  EXPECT_EQ(about(findings, "RetNet 760M's held-out loss is above the held-out loss of Lazy Attention 760M").verdict,
            Verdict::reproduced);
  EXPECT_EQ(about(findings, "Mamba2 760M's held-out loss is below the held-out loss of Lazy").verdict,
            Verdict::reproduced);
  const Finding& streaming =
      about(findings, "StreamingLLM 340M's held-out loss is above the held-out loss of Transformer++ 340M");
  EXPECT_EQ(streaming.verdict, Verdict::reproduced);
  EXPECT_EQ(streaming.models, "streaming, softmax");
  EXPECT_EQ(about(findings, "DeltaNet 760M's held-out loss").verdict, Verdict::open);
  // Models that were trained once do not give a finding.
  for (const Finding& f : find_recipe("table1").judge(claims_at("small"), Results(1, values)))
    EXPECT_TRUE(f.verdict == Verdict::open || f.verdict == Verdict::not_testable) << f.claim;
}

// Excess sinks are compared with softmax, and times with the time of softmax in the same step.
TEST(Recipes, Rivals_AreJudgedBySinksAndTimes) {
  Values values;
  for (const auto& [model, excess, sink_1] :
       {std::tuple{"softmax", 0.08, 0.1}, {"gated", 0.01, 0.0}, {"off-by-one", 0.06, 0.09}}) {
    add(values, model, "sinks", "excess", excess);
    add(values, model, "sinks", "sink_1", sink_1);
  }
  for (int64_t seed = 1; seed <= 4; ++seed) {
    const auto time = [](double ms) { return Json{{"median", ms}, {"quartiles", {ms, ms}}}; };
    const double noise = 0.1 * static_cast<double>(seed);
    values[training_id("gated", seed) + ".speed"] = {
        {"as trained", {{"512", {{"train_ms", time(101 + noise)}}}, {"2048", {{"decode_ms", time(120 + noise)}}}}},
        {"softmax", {{"512", {{"train_ms", time(100)}}}, {"2048", {{"decode_ms", time(100)}}}}}};
  }
  const auto findings = find_recipe("rivals").judge(claims_at("small"), Results(4, values));
  const auto verdict = [&](const char* words) { return about(findings, words).verdict; };
  EXPECT_EQ(verdict("(b) the excess sink of gated"), Verdict::reproduced);
  EXPECT_EQ(verdict("(b) the excess sink of off-by-one"), Verdict::refuted);
  EXPECT_EQ(verdict("(b) Sink_1^0.3 of gated"), Verdict::reproduced);
  EXPECT_EQ(verdict("(b) Sink_1^0.3 of off-by-one"), Verdict::refuted);
  EXPECT_EQ(verdict("(f) a training step of gated, 512 tokens"), Verdict::reproduced);
  EXPECT_EQ(verdict("(f) a token of gated after 2048"), Verdict::refuted);
  EXPECT_NEAR(about(findings, "(f) a token of gated").estimate->value, 1.2025, 1e-9);
  EXPECT_EQ(verdict("(f) a token of softpick"), Verdict::open);
  add(values, "softmax", "sinks", "excess", -0.01);  // softmax has no sink that could be removed
  EXPECT_EQ(about(find_recipe("rivals").judge(claims_at("small"), Results(4, values)), "excess sink of gated").verdict,
            Verdict::not_testable);
}

// Curves with points at 100 and 200 tokens; the time per token determines where they are compared.
TEST(Recipes, TrainingCurves_AreComparedAtEqualTime) {
  const auto judged = [](double pace) {
    Values values;
    for (int64_t seed = 1; seed <= 3; ++seed) {
      const double shift = 0.001 * static_cast<double>(seed);
      const auto curve = [&](double first, double last) {
        return Json{{"validation", {{"tokens", {100, 200}}, {"loss", {first, last + shift}}}}};
      };
      values[training_id("softmax", seed)] = curve(4.0, 3.0);
      values[training_id("gated", seed)] = curve(3.6, 2.8);
      const auto ms = [](double time) { return Json{{"512", {{"train_ms", {{"median", time}}}}}}; };
      values[training_id("gated", seed) + ".speed"] = {{"as trained", ms(pace)}, {"softmax", ms(1)}};
    }
    return find_recipe("rivals").judge(claims_at("small"), Results(3, values));
  };
  const auto effect = [&](double pace) {
    return about(judged(pace), "(a) at equal time the validation loss of gated").estimate->value;
  };
  EXPECT_NEAR(effect(1), 2.8 - 3.0, 1e-12);
  EXPECT_NEAR(effect(2), 3.6 - 3.0, 0.003) << "gated has processed half of its tokens";
  EXPECT_NEAR(effect(1.25), 3.12 - 3.0, 0.003) << "gated has processed 160 tokens";
  EXPECT_NEAR(effect(0.8), 2.8 - 3.4, 0.003) << "softmax has processed 160 tokens";
  const Finding late = about(judged(4), "(a) at equal time the validation loss of gated");
  EXPECT_EQ(late.verdict, Verdict::open);
  const std::string unmeasured = about(judged(1), "(a) at equal time the validation loss of lazy").reason;
  EXPECT_FALSE(unmeasured.empty());
  EXPECT_FALSE(late.reason.empty());
  EXPECT_NE(late.reason, unmeasured);
}

// Task accuracies are compared seed by seed, because both models see the same documents.
TEST(Recipes, Table1_ComparesTasksSeedBySeed) {
  const auto tasks = [](double accuracy) { return Json{{"piqa", {{"acc", {{"value", accuracy}, {"n", 100}}}}}}; };
  Values values;
  for (const auto& [seed, shift] : {std::pair{1, 0.0}, {2, 0.1}, {3, -0.05}, {4, 0.2}}) {
    values[training_id("lazy", seed) + ".tasks"] = tasks(0.6 + shift);
    values[training_id("softmax", seed) + ".tasks"] = tasks(0.59 + shift - 1e-7 * seed);
  }
  const Finding f = about(find_recipe("table1").judge(claims_at("small"), Results(4, values)),
                          "Transformer++ 340M's PIQA acc is below Lazy Attention 340M's PIQA acc");
  EXPECT_NEAR(f.estimate->value, -0.01, 1e-6);
  EXPECT_EQ(f.verdict, Verdict::reproduced) << "seeds differ by more than the effect, but paired differences do not";
}

Json mask_values(double first, double masked) {
  const auto list = [](double value) {
    return std::vector<double>{value, value + 0.001, value, value - 0.001, value, value, value + 0.002, value};
  };
  return {{"position", 2},
          {"even", 0.02},
          {"first", list(first)},
          {"masked", list(masked)},
          {"sink_first", list(first)},
          {"sink_masked", list(masked)},
          {"alpha", {first, masked}}};
}

TEST(Recipes, Figure2a_DecidesWhichTokenIsTheSink) {
  const Recipe& recipe = find_recipe("fig2a");
  EXPECT_EQ(recipe.plan(claims_at("small")).size(), 14u)
      << "the plan has seven positions, each with one model and one measurement";
  for (const Step& step : recipe.plan(claims_at("small"))) {
    if (step.id == "mask-at-17.mask") {
      EXPECT_EQ(step.settings.at("position"), 17);
    }
  }
  Values values;
  for (int64_t seed = 1; seed <= 4; ++seed) {
    const double shift = 1e-4 * static_cast<double>(seed);
    for (const auto& [k, first, masked] :
         {std::tuple{2, 0.05, 0.3}, {5, 0.3, 0.05}, {17, 0.3, 0.05}, {65, 0.01, 0.012}})
      values[training_id(fmt::format("mask-at-{}", k), seed) + ".mask"] =
          mask_values(first + shift, masked - 2 * shift);
  }
  const Results results(4, values);
  const auto findings = recipe.judge(claims_at("small"), results);
  EXPECT_EQ(about(findings, "Mask@2: the fixed token receives more than the first position").verdict,
            Verdict::reproduced);
  EXPECT_EQ(about(findings, "Mask@5: the fixed token receives more than the first position").verdict, Verdict::refuted);
  EXPECT_EQ(about(findings, "Mask@17: the first position receives more than the fixed token").verdict,
            Verdict::reproduced);
  EXPECT_EQ(about(findings, "Mask@65: the first position receives more than an even share").verdict, Verdict::refuted);
  EXPECT_EQ(about(findings, "Mask@2: the fixed token, share of layers and heads").verdict, Verdict::not_testable);
  EXPECT_EQ(about(findings, "Mask@9: the fixed token receives").verdict, Verdict::open)
      << "this position was not measured";
  EXPECT_THAT(recipe.pictures(results), HasSubstr("Sink<sub>k</sub>"));
}

// Returns distance biases [layer][head][distance] in which a fraction `upper` of the heads in the upper layers shows
// inhibition of return; all other curves decay.
Json learned(int layers, int heads, double upper) {
  Json bias = Json::array();
  for (int l = 0; l < layers; ++l) {
    Json layer = Json::array();
    for (int h = 0; h < heads; ++h) {
      std::vector<double> curve(512, 0.0);
      if (l >= layers / 2 && h < upper * heads) {
        curve[0] = curve[1] = 1;
        for (size_t d = 2; d <= 10; ++d) curve[d] = -0.8;
      } else {
        for (size_t d = 0; d < 512; ++d) curve[d] = -(l == 0 ? 0.02 : 0.01) * static_cast<double>(d);
      }
      layer.push_back(curve);
    }
    bias.push_back(layer);
  }
  return {{"distance_bias", bias}};
}

// `learned` values for four seeds; the bias of seed k is multiplied by 1 + k / 1000.
Values four_seeds(const std::string& model, const Json& values) {
  Values out;
  for (int64_t seed = 1; seed <= 4; ++seed) {
    Json scaled = values;
    for (Json& layer : scaled.at("distance_bias")) {
      for (Json& head : layer) {
        for (Json& bias : head) bias = bias.get<double>() * (1 + 0.001 * static_cast<double>(seed));
      }
    }
    out[training_id(model, seed) + ".learned"] = scaled;
  }
  return out;
}

TEST(Recipes, Figure4_JudgesSyntheticBiases) {
  const Recipe& recipe = find_recipe("fig4");
  const auto judged = [&](double upper, double upper_of_the_last_seed) {
    Values values = four_seeds("lazy", learned(12, 8, upper));
    values[training_id("lazy", 4) + ".learned"] = learned(12, 8, upper_of_the_last_seed);
    return recipe.judge(claims_at("small"), Results(4, values));
  };
  const auto yes = judged(1, 0.875);
  const Finding& upper = about(yes, "most heads of the upper layers");
  EXPECT_EQ(upper.verdict, Verdict::reproduced);
  EXPECT_THAT(upper.reason, HasSubstr("0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1"));
  EXPECT_EQ(about(yes, "falls with distance").verdict, Verdict::reproduced);
  EXPECT_EQ(about(yes, "smaller than in the first").verdict, Verdict::reproduced);
  EXPECT_EQ(about(yes, "as a share of the first layer's").verdict, Verdict::not_testable);
  Values flatter = four_seeds("lazy", learned(24, 8, 0));
  for (Json& head : flatter.at(training_id("lazy", 4) + ".learned").at("distance_bias")[1]) {
    for (Json& bias : head) bias = bias.get<double>() * 0.98;
  }
  EXPECT_EQ(about(recipe.judge(claims_at("paper"), Results(4, flatter)), "as a share").verdict, Verdict::reproduced);
  const auto no = judged(0, 0.125);
  EXPECT_EQ(about(no, "most heads of the upper layers").verdict, Verdict::refuted);
  Values seeds_differ;
  for (const auto& [seed, share] : {std::pair{1, 1.0}, {2, 0.25}, {3, 0.75}, {4, 0.5}})
    seeds_differ[training_id("lazy", seed) + ".learned"] = learned(12, 8, share);
  EXPECT_EQ(about(recipe.judge(claims_at("small"), Results(4, seeds_differ)), "most heads of the upper layers").verdict,
            Verdict::open);
}

// Every recipe uses every seed, so that --seeds increases the number of values that are judged.
TEST(Recipes, FurtherSeeds_AreCounted) {
  Values values = four_seeds("lazy", learned(12, 8, 1));
  const auto n = [&](int64_t seeds) {
    return about(find_recipe("fig4").judge(claims_at("small"), Results(seeds, values)), "falls with distance")
        .estimate->by_unit.size();
  };
  EXPECT_EQ(n(1), 1u);
  EXPECT_EQ(n(3), 3u);
  values.erase("lazy.seed2.learned");
  EXPECT_EQ(n(4), 3u) << "the estimate uses only seeds with a measurement";
  for (const Recipe& recipe : recipes()) {
    size_t one = 0, three = 0;
    for (const auto& [seeds, count] : {std::pair{1, &one}, {3, &three}}) {
      const Conditions conditions{find_scale("tiny"), {}, {}, {}, seeds, "cpu"};
      for (const Step& step : recipe.plan(conditions))
        *count += step.kind != StepKind::experiment || !step.model.empty();
    }
    if (recipe.name != "latency" && recipe.name != "table3") {
      EXPECT_EQ(three, 3 * one) << recipe.name;
    }
  }
}

TEST(Recipes, Table2_JudgesSyntheticMeasures) {
  Values values;
  for (const auto& [model, sink, density] : {std::tuple{"softmax", 0.05, 0.94},
                                             {"sparsemax", 0.06, 0.93},
                                             {"elastic", 0.002, 0.4},
                                             {"entmax15", 0.01, 0.9}}) {
    add(values, model, "sinks", "sink_ratio", sink);
    add(values, model, "sinks", "density", density);
  }
  const auto findings = find_recipe("table2").judge(claims_at("small"), Results(4, values));
  const Finding& density = about(findings, "tau from -1: the density is below softmax's");
  EXPECT_EQ(density.verdict, Verdict::reproduced);
  EXPECT_THAT(density.paper, Names({"40.24", "94.53"}));
  EXPECT_EQ(density.estimate->by_unit.size(), 4u);
  EXPECT_EQ(about(findings, "tau from -1: the sink ratio is below").verdict, Verdict::reproduced);
  EXPECT_EQ(about(findings, "sparsemax: the density is above").verdict, Verdict::refuted);
  EXPECT_EQ(about(findings, "sparsemax: the sink ratio is below").verdict, Verdict::refuted);
  EXPECT_EQ(about(findings, "held-out loss than ReLU(softmax - 1 / i)").verdict, Verdict::open);
  EXPECT_EQ(about(findings, "sink ratio of entmax-1.5").rule, "") << "no value is published";
  const Finding& value = about(findings, "density of softmax");
  EXPECT_EQ(value.verdict, Verdict::not_testable);
  EXPECT_THAT(value.rule, Names({10, "0.9453"}));
  EXPECT_THAT(density.rule, Names({"below", 0}));
  const auto at_paper = find_recipe("table2").judge(claims_at("paper"), Results(4, values));
  EXPECT_EQ(about(at_paper, "density of softmax").verdict, Verdict::reproduced) << "0.94 is within 10 % of 0.9453";
}

// Made-up values for one training of every model; all values differ.
Values one_training(const Recipe& recipe, const Conditions& conditions) {
  Values values;
  double level = 1;
  for (const Step& step : recipe.plan(conditions)) {
    const auto texts = [&](double base) {
      std::vector<double> out(32);
      for (size_t n = 0; n < out.size(); ++n) out[n] = (base + 1e-4 * static_cast<double>(n)) * level;
      return out;
    };
    if (step.kind == StepKind::train) continue;
    level *= 1.07;
    Json& v = values[step.id];
    if (step.kind == StepKind::heldout) v = {{"loss", texts(3)}};
    if (step.kind == StepKind::sinks) {
      v = {{"sink_ratio", texts(0.02)}, {"density", texts(0.1)}, {"released_mass", texts(0.1)}};
    }
    if (step.kind == StepKind::learned) {
      v = learned(12, 8, 1);
      v["tau"] = std::vector<std::vector<double>>(12, texts(-1));
      v["alibi_slopes"] = std::vector<std::vector<double>>(12, texts(0.1));
    }
    if (step.kind == StepKind::lengths) {
      for (const char* text : {"heldout", "wikitext", "lambada_openai"}) {
        for (const Json& length : step.settings.at("lengths"))
          v[text][length.dump()] = texts(3 + 1e-3 * length.get<double>());
      }
    }
    if (step.kind == StepKind::experiment && !step.model.empty()) {
      for (const char* field :
           {"masked", "first", "sink_masked", "sink_first", "residual", "values", "sink", "full", "window"})
        v[field] = texts(0.1);
      v["even"] = 0.05;
      for (const char* input : {"natural", "natural_bos", "repeated"}) v[input] = {{"sink", texts(0.2)}};
    }
  }
  return values;
}

TEST(Recipes, OneTrainingPerModel_DecidesNothing) {
  size_t measured = 0;
  for (const Recipe& recipe : recipes()) {
    for (const Scale& scale : scales()) {
      const Conditions conditions = claims_at(scale.name);
      for (const Finding& f : recipe.judge(conditions, Results(1, one_training(recipe, conditions)))) {
        EXPECT_TRUE(f.verdict == Verdict::open || f.verdict == Verdict::not_testable)
            << recipe.name << ", " << scale.name << ": " << f.claim;
        if (f.estimate) {
          EXPECT_FALSE(f.estimate->interval) << recipe.name << ": " << f.claim;
          ++measured;
        }
      }
    }
  }
  EXPECT_GT(measured, 0u) << "some claims of trained models must have values";
}

TEST(Recipes, OneTraining_ReportsItsTextsOnly) {
  Values values;
  add(values, "softmax", "sinks", "sink_ratio", 0.05);
  add(values, "elastic", "sinks", "sink_ratio", 0.002);
  const Finding f =
      about(find_recipe("table2").judge(claims_at("small"), Results(1, values)), "tau from -1: the sink ratio");
  EXPECT_EQ(f.verdict, Verdict::open);
  EXPECT_FALSE(f.estimate->interval);
  EXPECT_THAT(f.reason, testing::AllOf(Names({8}), HasSubstr("[")));
}

// Four layers with four heads whose bias is -1 up to `distance` and 0 beyond it.
Json reaching(size_t distance, size_t window) {
  std::vector<double> curve(window, 0.0);
  std::fill(curve.begin(), curve.begin() + static_cast<std::ptrdiff_t>(std::min(distance + 1, window)), -1.0);
  return {
      {"distance_bias", std::vector<std::vector<std::vector<double>>>(4, std::vector<std::vector<double>>(4, curve))}};
}

TEST(Recipes, Figure9_ComparesRangesWithinOneWindow) {
  const auto judged = [](size_t alone, size_t with_rope) {  // windows of tiny scale: 256 and 128
    Values values;
    for (int64_t seed = 1; seed <= 4; ++seed) {
      const size_t shift = static_cast<size_t>(seed) % 2;
      values[training_id("bias-alone", seed) + ".learned"] = reaching(alone - shift, 256);
      values[training_id("rope-bias", seed) + ".learned"] = reaching(with_rope, 128);
    }
    return about(find_recipe("fig9").judge(claims_at("tiny"), Results(4, values)), "reaches less far");
  };
  EXPECT_EQ(judged(100, 18).verdict, Verdict::reproduced);
  EXPECT_EQ(judged(100, 18).estimate->value, -81.5);
  EXPECT_EQ(judged(50, 100).verdict, Verdict::refuted);
  EXPECT_EQ(judged(255, 18).estimate->value, -109) << "ranges are compared within the smaller of the two windows";
  const Finding both = judged(255, 127);
  EXPECT_EQ(both.verdict, Verdict::not_testable);
}

// "Within 20 tokens" is an upper bound: smaller values agree with the publication.
TEST(Recipes, Figure9_TreatsWithinAsUpperBound) {
  const auto judged = [](size_t range) {
    Values values;
    for (int64_t seed = 1; seed <= 4; ++seed)
      values[training_id("rope-bias", seed) + ".learned"] = reaching(range + static_cast<size_t>(seed) % 2, 512);
    return about(find_recipe("fig9").judge(claims_at("paper"), Results(4, values)), "RoPE + bias: effective range")
        .verdict;
  };
  EXPECT_EQ(judged(5), Verdict::reproduced);
  EXPECT_EQ(judged(30), Verdict::refuted);
}

TEST(Recipes, Figure9_JudgesAlibi) {
  const auto judged = [&](double factor) {  // 2 layers of 8 heads, 2^-1 ... 2^-8 at the start
    Values values;
    for (int64_t seed = 1; seed <= 4; ++seed) {
      std::vector<double> layer;
      for (int r = 1; r <= 8; ++r) layer.push_back((factor + 1e-4 * static_cast<double>(seed)) * std::pow(2.0, -r));
      values[training_id("alibi-trained", seed) + ".learned"] = {{"alibi_slopes", {layer, layer}}};
    }
    return about(find_recipe("fig9").judge(claims_at("tiny"), Results(4, values)), "ALiBi with trainable slopes");
  };
  EXPECT_EQ(judged(1.02).verdict, Verdict::reproduced);
  EXPECT_NEAR(judged(1.02).estimate->value, 0.02025, 1e-12);
  EXPECT_EQ(judged(0.5).verdict, Verdict::refuted);
  const auto biased =
      find_recipe("fig9").judge(claims_at("tiny"), Results(1, {{"alibi-bias.learned", reaching(18, 128)}}));
  EXPECT_EQ(about(biased, "ALiBi + bias").estimate->value, 18);
}

TEST(Recipes, UntrainedAlibi_IsOpen) {
  const auto findings =
      find_recipe("fig9").judge(claims_at("tiny"), Results(1, {{"bias-alone.learned", learned(4, 4, 0)}}));
  EXPECT_EQ(about(findings, "ALiBi with trainable slopes").verdict, Verdict::open);
  const auto nothing = find_recipe("fig9").judge(claims_at("tiny"), Results(1, {}));
  EXPECT_EQ(about(findings, "ALiBi + bias").reason, about(nothing, "ALiBi + bias").reason);
}

TEST(Recipes, Figure10_DistinguishesLayers) {
  Values values;
  for (int64_t seed = 1; seed <= 4; ++seed) {
    Json tau = Json::array();
    for (int l = 0; l < 12; ++l) {
      std::vector<double> row;
      for (int h = 0; h < 8; ++h) {
        const double s = 1e-3 * static_cast<double>(seed);
        row.push_back(l < 4 ? -2 - 0.01 * h - s : l < 8 ? -1 - 0.01 * h : -1 - (0.3 + s) * (h % 3));
      }
      tau.push_back(row);
    }
    values[training_id("lazy", seed) + ".learned"] = {{"tau", tau}};
  }
  for (const Finding& f : find_recipe("fig10").judge(claims_at("small"), Results(4, values)))
    EXPECT_EQ(f.verdict, Verdict::reproduced) << f.claim;
}

TEST(Recipes, Pairs_NeedTheSameTexts) {
  const auto loss = [](std::vector<double> texts) { return Json{{"loss", std::move(texts)}}; };
  const Finding f = about(
      find_recipe("parity").judge(claims_at("tiny"), Results(2, {{"lazy.heldout", loss({1, 2, 3})},
                                                                 {"softmax.heldout", loss({1.5, 2.5, 3.5})},
                                                                 {"lazy.seed2.heldout", loss({2, 2, 2})},
                                                                 {"softmax.seed2.heldout", loss({2.1, 2.1, 2.1})}})),
      "softmax's at RoPE base 1e4");
  EXPECT_THAT(f.estimate->by_unit,
              testing::ElementsAre(testing::DoubleNear(-0.5, 1e-12), testing::DoubleNear(-0.1, 1e-12)));
  EXPECT_EQ(f.over, "seeds");
  EXPECT_EQ(f.verdict, Verdict::open);
  const Results unequal(
      1,
      {{"lazy.heldout", loss({1, 2})}, {"softmax.heldout", loss({1})}, {"softmax-rope150k.heldout", loss({1, 2, 3})}});
  const std::vector<Finding> findings = find_recipe("parity").judge(claims_at("tiny"), unequal);
  const Finding other = about(findings, "and RoPE base 1.5e5");
  EXPECT_FALSE(other.estimate);
  EXPECT_EQ(other.verdict, Verdict::open);
  const auto nothing = find_recipe("parity").judge(claims_at("tiny"), Results(1, {}));
  EXPECT_NE(other.reason, about(nothing, "and RoPE base 1.5e5").reason)
      << "the two models were measured on different texts";
  // A record contains only the mean, so texts cannot be compared in pairs.
  const Finding mean = about(findings, "softmax's at RoPE base 1e4");
  EXPECT_NEAR(mean.estimate->value, 0.5, 1e-12);
  EXPECT_THAT(mean.reason, testing::Not(HasSubstr("[")));
}

TEST(Recipes, Ablation_NamesTheDifferences) {
  for (const Finding& f : find_recipe("ablation").judge(claims_at("tiny"), Results(1, {}))) {
    if (f.models == "rope-bias-150k, softmax" || f.models == "lazy, elastic") {
      EXPECT_THAT(f.claim, Names({"bias", "base"}));
    }
  }
}

TEST(Recipes, MinimalOverhead_AllowsSmallOverhead) {
  const auto judged = [](double ratio) {  // softmax's time over Elastic-Softmax's
    std::vector<double> ratios;
    for (int n = 0; n < 9; ++n) ratios.push_back(ratio + 1e-4 * n);
    return about(find_recipe("latency").judge(
                     claims_at("tiny"), Results(1, {{"latency", {{"forward", {{"ratios", ratios}, {"alive", 0.2}}}}}})),
                 "forward pass");
  };
  EXPECT_EQ(judged(0.95).verdict, Verdict::reproduced) << "an overhead of about 5 % counts as minimal";
  EXPECT_NEAR(judged(0.8).estimate->value, 0.25, 1e-3);
  EXPECT_EQ(judged(0.8).verdict, Verdict::refuted);
  EXPECT_THAT(judged(0.8).reason, Names({20}));
}

// The study does not say which of two standard deviations it prints, so either of the two is accepted.
TEST(Recipes, PrintedDigits_MatchEitherMeasure) {
  const auto judged = [](double by_n, double by_less) {
    std::vector<Json> layers(
        12, {{"mean", 0}, {"std", by_n}, {"std_unbiased", by_less}, {"all", std::vector<double>(768)}});
    const Json top{{{"coordinate", 138}}, {{"coordinate", 447}}};
    Conditions conditions = claims_at("tiny");
    conditions.models = {{"gpt2", "folder"}};
    const Json values{{"gamma", layers},
                      {"layers", 12},
                      {"hidden_size", 768},
                      {"top", {{"literal", top}, {"normed", top}, {"block", top}}}};
    return about(find_recipe("gpt2-gamma").judge(conditions, Results(1, {{"gpt2.gamma", values}})),
                 "layer 2: standard deviation");
  };
  EXPECT_EQ(judged(6.6204, 6.7).verdict, Verdict::reproduced);
  EXPECT_EQ(judged(6.61, 6.6204).verdict, Verdict::reproduced);
  EXPECT_EQ(judged(6.61, 6.6204).estimate->value, 6.6204);
  EXPECT_EQ(judged(6.61, 6.63).verdict, Verdict::refuted);
  EXPECT_EQ(judged(6.61, 6.63).models, "gpt2");
}

TEST(Recipes, Table3_DistinguishesSplitsFromSets) {
  const Json counts{{"piqa", {{"samples", 1838}, {"files", "piqa.jsonl"}}},
                    {"arc", {{"samples", 7787}, {"files", "arc_easy.jsonl"}}},
                    {"boolq", {{"samples", 15943}, {"files", "boolq.jsonl"}}}};
  const auto findings = find_recipe("table3").judge(claims_at("tiny"), Results(1, {{"datasets", counts}}));
  EXPECT_EQ(about(findings, "PIQA").verdict, Verdict::not_testable);
  EXPECT_EQ(about(findings, "ARC").verdict, Verdict::reproduced);
  EXPECT_EQ(about(findings, "BoolQ").verdict, Verdict::refuted);
  EXPECT_THAT(about(findings, "SIQA").reason, Names({"--data"}));
}

}  // namespace
}  // namespace lazy::repro
