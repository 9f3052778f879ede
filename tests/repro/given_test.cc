// Recipes whose models are given instead of trained: complete runs, and their numbers compared with the definitions.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/file.h"
#include "core/statistics.h"
#include "given_models.h"
#include "measure/model_measures.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "repro/report.h"
#include "support/error_of.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;

TEST_F(GivenModels, Recipes_RunToCompletion) {
  const fs::path softmax = folder_ / "softmax", lazy = folder_ / "lazy";
  std::vector<std::pair<std::string, fs::path>> of_figure2{{"softmax", softmax}, {"softmax-window", softmax}};
  for (const int k : {1, 2, 5, 9, 17, 33, 65}) of_figure2.emplace_back("mask-at-" + std::to_string(k), softmax);
  const std::vector<std::pair<std::string, fs::path>> twins{{"lazy", lazy}, {"softmax-rope150k", softmax}};
  const std::string unmeasured = find_recipe("parity").judge(options({}).conditions, Results(1, {})).front().reason;
  ASSERT_FALSE(unmeasured.empty());
  for (const auto& [recipe, models] : {std::pair{"fig2", of_figure2}, {"fig7", twins}, {"streaming", twins}}) {
    SCOPED_TRACE(recipe);
    const RecipeRun run = run_recipe(find_recipe(recipe), options(models));
    EXPECT_EQ(run.unfinished, 0);
    EXPECT_FALSE(run.findings.empty());
    for (const Finding& f : run.findings) EXPECT_THAT(f.reason, testing::Not(HasSubstr(unmeasured)));
    const std::string report = read_file(write_report(run, folder_ / "report"));
    EXPECT_THAT(report, Names({"hidden_size", 32, 128}))
        << "the report names the configuration that the plan would have trained";
  }
  EXPECT_FALSE(fs::exists(folder_ / "out/tiny/steps/lazy/run")) << "no model must be trained";
  // A step with different weights is a different step; a step with equal weights is found.
  const auto again = plan_recipe(find_recipe("streaming"), options(twins));
  for (const StepRun& s : again.steps) EXPECT_TRUE(s.found) << s.step.id;
  const auto other = plan_recipe(find_recipe("streaming"), options({{"lazy", softmax}, {"softmax-rope150k", softmax}}));
  for (const StepRun& s : other.steps) EXPECT_EQ(s.found, s.step.id.starts_with("softmax")) << s.step.id;
}

// The document separators affect the loss. The loss of a recipe equals the loss in a record, at every length.
TEST_F(GivenModels, HeldOutText_HasTheSeparatorsOfTraining) {
  const auto found = [&](const char* recipe, const char* model, const std::string& step) {
    RunOptions chosen = options({{model, folder_ / "softmax"}});
    chosen.only = {model + ("." + step)};
    for (const StepRun& s : run_recipe(find_recipe(recipe), chosen).steps)
      if (s.step.id == chosen.only[0]) return s.record.at("values");
    return Json();
  };
  ModelInputs inputs{folder_ / "softmax", folder_ / "corpus", {}, {}, "cpu", false};
  inputs.sequences = {
      .length = kContext, .bos_per_document = false, .eos_per_document = true, .bos_per_sequence = true};
  LanguageModel model = LanguageModel::load(inputs.model);
  const Scale& scale = find_scale("tiny");
  const double loss = mean_of(found("fig8", "bias-alone", "heldout").at("loss").get<std::vector<double>>());
  const Json losses = found("rope-base", "lazy-base10000", "lengths").at("heldout");
  const auto same = [&] {
    return heldout_measures(model, inputs, scale.heldout_sequences * (kContext - 1)).at("loss").get<double>();
  };
  const auto same_by_length = [&](int64_t length) {
    const Stretches stretches = heldout_stretches(inputs.corpus, inputs.sequences, 1024, scale.length_blocks);
    const auto bos = load_tokenizer(inputs.model.string())->bos_id();
    return length_measures(model, stretches, {length}, bos, false)
        .at(std::to_string(length))
        .at("by_group")
        .get<std::vector<double>>();
  };
  EXPECT_NEAR(loss, same(), 1e-5);
  for (const auto& [length, values] : losses.items())
    EXPECT_THAT(values.get<std::vector<double>>(),
                ::testing::Pointwise(::testing::DoubleNear(1e-5), same_by_length(std::stoll(length))))
        << length;
  inputs.sequences.bos_per_document = true, inputs.sequences.eos_per_document = false;
  EXPECT_GT(std::abs(loss - same()), 1e-3) << "BOS between documents";
  const auto& [length, values] = *losses.items().begin();
  EXPECT_GT(std::abs(mean_of(values.get<std::vector<double>>()) - mean_of(same_by_length(std::stoll(length)))), 1e-4)
      << "BOS between documents";
}

// Compares the bytes of V that decode reads with the attention weights of a full forward pass, and checks the size
// limit of each cache.
TEST_F(GivenModels, Caches_HaveExpectedSizesAndReads) {
  const Json settings{{"texts", 3},
                      {"length", 40},
                      {"counted_from", 20},
                      {"read_at", {8, 24, 40}},
                      {"read_texts", 2},
                      {"decoded", 4},
                      {"caches", {"streaming:0+6", "streaming:2+4", "heaviest:3+3"}}};
  constexpr double kARow = 8 * 4, kRows = 2 * 4;  // bytes in fp32; layers times heads
  for (const char* model : {"softmax", "lazy"}) {
    SCOPED_TRACE(model);
    const Json found = experiment("cache", model, settings);
    EXPECT_NEAR(found.at("full_perplexity").get<double>(),
                std::exp(mean_of(found.at("full").get<std::vector<double>>())), 1e-9);
    const auto bytes = [&](const char* cache, const char* length) {
      return found.at("values").at(cache).at(length).at("fp32_bytes").get<double>();
    };
    for (const char* cache : {"streaming:0+6", "streaming:2+4", "heaviest:3+3"}) {
      EXPECT_EQ(found.at("caches").at(cache).at("fp32_bytes"), 6 * 2 * kARow * kRows);
      EXPECT_LE(bytes(cache, "40"), 7 * kARow * kRows);
      EXPECT_NEAR(bytes(cache, "40"),
                  found.at("values").at(cache).at("40").at("share").get<double>() * 7 * kARow * kRows, 1e-6);
    }
    LanguageModel whole = LanguageModel::load(folder_ / model);
    const ModelAndTexts subject = model_and_texts(
        {{{"model", (folder_ / model).string()}, {"corpus", (folder_ / "corpus").string()}}, "cpu", false}, 3, 41);
    const at::NoGradGuard guard;
    double alive = 0;  // keys with nonzero weight for the last four of 24 tokens, over all layers and heads
    for (size_t n = 0; n < 2; ++n) {
      ForwardOptions options;
      options.return_stats = true;
      for (const at::Tensor& layer :
           whole.forward(at::tensor(subject.texts[n], at::kLong).unsqueeze(0).narrow(1, 0, 24), options).stats)
        alive += layer.select(0, 2).narrow(2, 20, 4).sum().item<double>() / 8;
    }
    EXPECT_NEAR(bytes("full", "24"), alive * kARow, 1e-6);
    if (model == std::string("softmax")) {
      EXPECT_NEAR(bytes("full", "24"), 22.5 * kARow * kRows, 1e-6) << "a query sees 21 to 24 keys";
      EXPECT_NEAR(bytes("heaviest:3+3", "40"), 7 * kARow * kRows, 1e-6);
    } else {
      EXPECT_LT(bytes("full", "24"), 22 * kARow * kRows);
    }
  }
  Json bad = settings;
  bad["read_at"] = {24, 8};
  EXPECT_THAT(error_of([&] { experiment("cache", "lazy", bad); }),
              Names({"cache", "read_at", 40, "decoded", 4, "[24,8]"}));
}

// A sliding window over the cache equals sliding-window attention, because RoPE depends only on distances.
TEST_F(GivenModels, Streaming_MatchesFullForward) {
  const Json values = experiment("streaming", "softmax", {{"texts", 3}, {"times", 4}, {"window", 1024}});
  EXPECT_EQ(values.at("window_tokens"), kContext);
  EXPECT_EQ(values.at("length"), 4 * kContext);
  const ModelAndTexts subject = model_and_texts(
      {{{"model", (folder_ / "softmax").string()}, {"corpus", (folder_ / "corpus").string()}}, "cpu", false}, 3,
      4 * kContext + 1);
  ModelConfig windowed = subject.model.config();
  windowed.attention.window = kContext;
  LanguageModel full = LanguageModel::load(folder_ / "softmax"),
                window = LanguageModel::load(folder_ / "softmax", windowed);
  const at::NoGradGuard guard;
  for (size_t n = 0; n < 3; ++n) {
    const at::Tensor text = at::tensor(subject.texts[n], at::kLong).unsqueeze(0);
    const auto loss = [&](LanguageModel& model) {
      const at::Tensor seen = model.log_likelihood(text.slice(1, 0, -1), text.slice(1, 1)).first;
      return -seen.slice(1, kContext).to(at::kDouble).mean().item<double>();
    };
    EXPECT_NEAR(values.at("full").at(n).get<double>(), loss(full), 1e-5);
    EXPECT_NEAR(values.at("window").at(n).get<double>(), loss(window), 1e-5);
    EXPECT_GT(std::abs(loss(full) - loss(window)), 1e-4);
    EXPECT_NE(values.at("first").at(n), values.at("window").at(n));
  }
}

TEST_F(GivenModels, Spread_MatchesHookedTensors) {
  const Json values = experiment("spread", "lazy", {{"texts", 2}, {"length", 20}});
  ModelAndTexts subject = model_and_texts(
      {{{"model", (folder_ / "lazy").string()}, {"corpus", (folder_ / "corpus").string()}}, "cpu", false}, 2, 20);
  for (size_t n = 0; n < 2; ++n) {
    double residual = 0, of_values = 0, sink = 0;
    ActivationHooks probes;
    // The variance at the first position divided by the mean over the other positions, minus 1.
    const auto ratio = [](const at::Tensor& rows) {
      const at::Tensor variance = rows.to(at::kDouble).var(1, /*unbiased=*/true);
      return variance[0].item<double>() / variance.slice(0, 1).mean().item<double>() - 1;
    };
    probes.read("layers.*.residual", [&](const std::string&, const at::Tensor& t) { residual += ratio(t[0]) / 2; });
    probes.read("layers.*.attention.v", [&](const std::string&, const at::Tensor& t) {
      for (int64_t h = 0; h < 4; ++h) of_values += ratio(t[0].select(1, h)) / 8;
    });
    probes.read("layers.*.attention.weights", [&](const std::string&, const at::Tensor& t) {
      sink += t[0].slice(1, 1).select(2, 0).mean().item<double>() / 2;
    });
    ForwardOptions how;
    how.activation_hooks = &probes;
    const at::NoGradGuard guard;
    subject.model.forward(at::tensor(subject.texts[n], at::kLong).unsqueeze(0), how);
    EXPECT_NEAR(values.at("residual").at(n).get<double>(), residual, 1e-5);
    EXPECT_NEAR(values.at("values").at(n).get<double>(), of_values, 1e-5);
    EXPECT_NEAR(values.at("sink").at(n).get<double>(), sink, 1e-5);
  }
}

TEST_F(GivenModels, Repetition_MatchesAttentionWeights) {
  const Json values = experiment("repetition", "softmax", {{"texts", 2}, {"length", 16}});
  const ExperimentInputs run{
      {{"model", (folder_ / "softmax").string()}, {"corpus", (folder_ / "corpus").string()}}, "cpu", false};
  LanguageModel model = experiment_model(run);
  const auto plain = texts_without_bos(run, 2, 16);
  const at::NoGradGuard guard;
  for (const char* input : {"natural", "repeated"}) {
    for (size_t n = 0; n < 2; ++n) {
      const auto ids = input == std::string("natural") ? plain[n] : std::vector<int64_t>(16, plain[n][8]);
      std::vector<double> sink;
      ActivationHooks probes;
      probes.read("layers.*.attention.weights", [&](const std::string&, const at::Tensor& w) {
        double sum = 0;
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t i = 1; i < 16; ++i) sum += w[0][h][i][0].item<double>();
        }
        sink.push_back(sum / (4 * 15));
      });
      ForwardOptions how;
      how.activation_hooks = &probes;
      model.forward(at::tensor(ids, at::kLong).unsqueeze(0), how);
      ASSERT_EQ(sink.size(), 2u);
      for (size_t l = 0; l < 2; ++l) EXPECT_NEAR(values.at(input).at("sink").at(n).at(l).get<double>(), sink[l], 1e-6);
    }
  }
}

}  // namespace
}  // namespace lazy::repro
