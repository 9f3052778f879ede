// Tests the measurement kinds model_latency and speed: the variants of a model, and the measured values.
#include "measure/latency.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/file.h"
#include "measured_models.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "sinks/measures.h"
#include "sinks/text_source.h"
#include "support/error_of.h"

namespace lazy::measure {
namespace {

class Latency : public MeasuredModels {
 protected:
  std::vector<LatencyVariant> variants() const {
    return latency_variants(folder_ / "lazy", {{"softmax", folder_ / "softmax"}}, "cpu", "fp32");
  }
  Json settings(std::vector<int64_t> lengths) const {
    return {{"lengths", std::move(lengths)},
            {"texts", 2},
            {"rounds", 3},
            {"decoded", 3},
            {"dtype", "fp32"},
            {"batch", 2},
            {"baselines", {{"softmax", (folder_ / "softmax").string()}}}};
  }
};

at::Tensor some_text() { return at::arange(40).remainder(7).add(80).unsqueeze(0); }

// Returns the scores and weights of the first layer. Its input is equal in all variants of a model.
std::pair<at::Tensor, at::Tensor> first_layer(LanguageModel& model) {
  std::pair<at::Tensor, at::Tensor> out;
  ActivationHooks hooks;
  hooks.read("layers.0.attention.scores", [&](const std::string&, const at::Tensor& t) { out.first = t; });
  hooks.read("layers.0.attention.weights", [&](const std::string&, const at::Tensor& t) { out.second = t; });
  ForwardOptions options;
  options.activation_hooks = &hooks;
  model.forward(some_text(), options);
  return out;
}

TEST_F(Latency, Variants_MatchTheirDefinitions) {
  const at::NoGradGuard guard;
  auto all = variants();
  ASSERT_EQ(all.size(), 4u);
  LanguageModel trained = LanguageModel::load(folder_ / "lazy"), twin = LanguageModel::load(folder_ / "softmax");
  const auto hidden = [](LanguageModel& model) { return model.forward(some_text()).hidden; };
  EXPECT_EQ(all[0].name, kAsTrained);
  EXPECT_TRUE(at::equal(hidden(all[0].model), hidden(trained)));
  EXPECT_EQ(all[3].name, "softmax");
  EXPECT_TRUE(at::equal(hidden(all[3].model), hidden(twin)));

  const auto [scores, weights] = first_layer(all[0].model);
  EXPECT_TRUE(weights.eq(0).logical_and(scores.isfinite()).any().item<bool>()) << "some visible keys have zero weight";
  for (const size_t n : {size_t{1}, size_t{2}}) {
    SCOPED_TRACE(all[n].name);
    const auto [same, softmax] = first_layer(all[n].model);
    EXPECT_TRUE(at::equal(same, scores)) << "queries, keys and distance bias are equal, so the scores must be equal";
    EXPECT_TRUE(at::allclose(softmax, at::softmax(scores, -1), 1e-5, 1e-7));
  }
  EXPECT_EQ(all[1].name, kAllAlive);
  EXPECT_EQ(all[1].model.config().attention.normalizer, Normalizer::elastic)
      << "this variant also computes the second pass of Elastic-Softmax";
  EXPECT_EQ(all[2].name, kOnePass);
  EXPECT_EQ(all[2].model.config().attention.normalizer, Normalizer::softmax);
  EXPECT_FALSE(all[2].model.tau(0).defined());
  EXPECT_TRUE(at::allclose(hidden(all[1].model), hidden(all[2].model), 1e-4, 1e-5))
      << "an offset of 0 does not change the weights";
  EXPECT_FALSE(at::allclose(hidden(all[0].model), hidden(all[2].model), 1e-2, 1e-2));
}

TEST_F(Latency, AliveFraction_MatchesFullForward) {
  const Json values = experiment("model_latency", "lazy", settings({32, 64}));
  LanguageModel model = LanguageModel::load(folder_ / "lazy");
  const auto tokenizer = load_tokenizer((folder_ / "lazy").string());
  const auto ids = sinks::corpus_source(*tokenizer, (folder_ / "corpus").string(), "validation").ids;
  const at::NoGradGuard guard;
  ForwardOptions options;
  options.return_stats = true;
  for (const int64_t length : {32, 64}) {
    double prefill = 0, decode = 0;
    for (const auto& text : sinks::spread_samples(ids, length + 3, 2, tokenizer->bos_id())) {
      const auto stats = model.forward(at::tensor(text, at::kLong).unsqueeze(0), options).stats;
      for (const at::Tensor& layer : stats) {
        const at::Tensor alive = layer.select(0, 2).to(at::kDouble).mean(1)[0];  // shape (length): mean over heads
        const at::Tensor visible = at::arange(1, length + 4, at::kDouble);
        prefill += (alive.slice(0, 0, length).sum() / visible.slice(0, 0, length).sum()).item<double>() / 4;
        decode += (alive / visible).slice(0, length).mean().item<double>() / 4;
      }
    }
    const auto at_length = [&](const char* variant) { return values.at(variant).at(std::to_string(length)); };
    EXPECT_NEAR(at_length("as trained").at("alive_prefill").get<double>(), prefill, 1e-6);
    EXPECT_NEAR(at_length("as trained").at("alive_decode").get<double>(), decode, 1e-6);
    EXPECT_LT(prefill, 1);
    EXPECT_LT(decode, 1);
    for (const char* variant : {"all alive", "one pass", "softmax"}) {
      EXPECT_EQ(at_length(variant).at("alive_prefill"), 1) << variant;
      EXPECT_EQ(at_length(variant).at("alive_decode"), 1) << variant;
    }
    for (const char* variant : {"as trained", "all alive", "one pass", "softmax"}) {
      for (const char* what : {"prefill_ms", "decode_ms", "attention_prefill_ms", "attention_decode_ms"}) {
        const Json found = at_length(variant).at(what);
        EXPECT_GT(found.at("quartiles").at(0).get<double>(), 0);
        EXPECT_LE(found.at("quartiles").at(0), found.at("median"));
        EXPECT_LE(found.at("median").get<double>(), found.at("quartiles").at(1).get<double>() * (1 + 1e-9) + 1)
            << "for an even count the median is the upper of the two middle values";
      }
    }
  }
}

TEST_F(Latency, Speed_MeasuresModelAndComparisonModel) {
  Json with = settings({16, 32});
  with["train_tokens"] = 40;
  for (const char* model : {"lazy", "softmax"}) {
    SCOPED_TRACE(model);
    const std::string before = read_file(folder_ / model / "model.safetensors");
    const Json values = experiment("speed", model, with);
    EXPECT_EQ(values.size(), 3u + 2u) << "the values contain three settings and two models";
    for (const char* variant : {"as trained", "softmax"}) {
      for (const char* length : {"16", "32"}) {
        const Json found = values.at(variant).at(length);
        for (const char* what : {"train_ms", "decode_ms"}) EXPECT_GT(found.at(what).at("median").get<double>(), 0);
      }
    }
    EXPECT_EQ(values.at("softmax").at("16").at("alive_decode"), 1);
    EXPECT_EQ(values.at("as trained").at("16").at("alive_decode").get<double>() < 1, model == std::string("lazy"));
    EXPECT_EQ(read_file(folder_ / model / "model.safetensors"), before);
  }
}

TEST_F(Latency, BadInput_IsNamedInTheError) {
  const auto names = [&](const char* model, const Json& more, std::initializer_list<Token> tokens) {
    const std::string found = error_of([&] { experiment("model_latency", model, more); });
    EXPECT_THAT(found, Names({"model_latency"}));
    EXPECT_THAT(found, Names(tokens));
    EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 0) << found;
  };
  names("lazy", settings({32, 1 << 20}), {1048579, 1048576, 3});
  names("softmax", settings({32}), {(folder_ / "softmax").string(), "Elastic-Softmax"});
  Json none = settings({32});
  none["rounds"] = 0;
  names("lazy", none, {"rounds", 1, 0});
  names("lazy", settings({0}), {"lengths", 1, "[0]"});
  Json wide = settings({32});
  wide["dtype"] = "fp64";
  names("lazy", wide, {"dtype", "fp32", "bf16", "fp64"});
}

}  // namespace
}  // namespace lazy::measure
