// Compares measurements of `lazy measure` on models with random weights with their definitions.
#include "measure/kinds.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/statistics.h"
#include "measured_models.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/mixers/mixer.h"
#include "support/error_of.h"
#include "support/small_gpt2.h"

namespace lazy::measure {
namespace {
namespace fs = std::filesystem;

// Compares the bytes of V that decode reads with the attention weights of a full forward pass, and checks the size
// limit of each cache.
TEST_F(MeasuredModels, Caches_HaveExpectedSizesAndReads) {
  const Json settings{{"texts", 3},
                      {"length", 40},
                      {"counted_from", 20},
                      {"read_at", {8, 24, 40}},
                      {"read_texts", 2},
                      {"decoded", 4},
                      {"caches", {"streaming:0+6", "streaming:2+4", "heaviest:3+3"}}};
  // kARow: bytes of one key or value vector (8 fp32 values); kRows: layers times heads
  constexpr double kARow = 8 * 4, kRows = 2 * 4;
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
    const ModelAndTexts read = subject(model, 3, 41);
    const at::NoGradGuard guard;
    double alive = 0;  // number of keys with nonzero weight for the last four of 24 tokens, over all layers and heads
    for (size_t n = 0; n < 2; ++n) {
      ForwardOptions options;
      options.return_stats = true;
      for (const at::Tensor& layer :
           whole.forward(at::tensor(read.texts[n], at::kLong).unsqueeze(0).narrow(1, 0, 24), options).stats)
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

// With a softmax model, attention over a cache that contains only the latest tokens must equal sliding-window
// attention, because RoPE depends only on distances.
TEST_F(MeasuredModels, Streaming_MatchesFullForward) {
  const Json values = experiment("streaming", "softmax", {{"texts", 3}, {"times", 4}, {"window", 1024}});
  EXPECT_EQ(values.at("window_tokens"), kContext);
  EXPECT_EQ(values.at("length"), 4 * kContext);
  const ModelAndTexts read = subject("softmax", 3, 4 * kContext + 1);
  ModelConfig windowed = read.model.config();
  windowed.attention.window = kContext;
  LanguageModel full = LanguageModel::load(folder_ / "softmax"),
                window = LanguageModel::load(folder_ / "softmax", windowed);
  const at::NoGradGuard guard;
  for (size_t n = 0; n < 3; ++n) {
    const at::Tensor text = at::tensor(read.texts[n], at::kLong).unsqueeze(0);
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

TEST_F(MeasuredModels, Spread_MatchesHookedTensors) {
  const Json values = experiment("spread", "lazy", {{"texts", 2}, {"length", 20}});
  ModelAndTexts read = subject("lazy", 2, 20);
  for (size_t n = 0; n < 2; ++n) {
    double residual = 0, of_values = 0, sink = 0;
    ActivationHooks probes;
    // Returns the variance at the first position divided by the mean variance at the other positions, minus 1.
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
    read.model.forward(at::tensor(read.texts[n], at::kLong).unsqueeze(0), how);
    EXPECT_NEAR(values.at("residual").at(n).get<double>(), residual, 1e-5);
    EXPECT_NEAR(values.at("values").at(n).get<double>(), of_values, 1e-5);
    EXPECT_NEAR(values.at("sink").at(n).get<double>(), sink, 1e-5);
  }
}

TEST_F(MeasuredModels, Repetition_MatchesAttentionWeights) {
  const Json values = experiment("repetition", "softmax", {{"texts", 2}, {"length", 16}});
  const ExperimentInputs run{inputs("softmax"), "cpu", false};
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

// A test fixture with a small GPT-2 with random weights, the tokenizer `bytes` and a text.
class MeasuredGpt2 : public testing::Test {
 protected:
  const fs::path folder_ =
      fs::path(testing::TempDir()) /
      ("gpt2_" + std::to_string(::getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
  void SetUp() override {
    fs::create_directories(folder_ / "model");
    const auto tokenizer = load_tokenizer("bytes");
    LanguageModel gpt2 = small_gpt2(3, 72, tokenizer->vocab_size());
    gpt2.save(folder_ / "model");
    tokenizer->save(folder_ / "model");
    std::ofstream file(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i)
      file << "Line " << i * 37 % 101 << " tells of a fox, a dog and " << i << " lazy afternoons.\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  Json inputs() const { return {{"model", (folder_ / "model").string()}, {"text", {(folder_ / "text.txt").string()}}}; }
  Json experiment(const char* kind, Json settings) const {
    settings.update(inputs());
    return measured(kind, settings);
  }
};

TEST_F(MeasuredGpt2, Repetition_WithUniformScoresIsUniform) {
  LanguageModel model = LanguageModel::load(folder_ / "model");
  const at::NoGradGuard guard;
  for (int64_t layer = 0; layer < 3; ++layer)
    model.projections(layer).q.zero_(), model.projections(layer).q_bias.zero_();
  model.save(folder_ / "model");
  const Json values = experiment("repetition", {{"texts", 3}, {"length", 40}});
  for (const char* input : {"natural", "repeated"}) {
    for (const Json& text : values.at(input).at("sink")) {
      for (const Json& layer : text) EXPECT_NEAR(layer.get<double>(), values.at("uniform").get<double>(), 1e-6);
    }
  }
}

// The bytes tokenizer has a BOS token. The expected values are computed from the attention weights with plain loops.
TEST_F(MeasuredGpt2, Mask_MatchesAttentionWeights) {
  const Json values = experiment("mask", {{"texts", 3}, {"length", 20}, {"position", 4}});
  LanguageModel model = LanguageModel::load(folder_ / "model");
  const auto tokenizer = load_tokenizer((folder_ / "model").string());
  auto texts = texts_without_bos({inputs(), "cpu", false}, 3, 20);
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
                experiment("mask", {{"texts", 3}, {"length", 20}, {"position", 20}});
              }),
              Names({"mask", "position", 1, 19, 20}));
}

}  // namespace
}  // namespace lazy::measure
