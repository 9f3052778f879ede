// Tests the kind `model` of `lazy measure`: all parts of a record for a softmax model and for a Lazy model, and the
// helper functions.
#include "measure/model_measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "support/tiny_corpus.h"

namespace lazy::measure {
namespace {
namespace fs = std::filesystem;

void check_sinks(const Json& sinks, bool elastic) {
  for (const char* length : {"16", "32"}) {
    for (const char* bos : {"bos", "no_bos"}) {
      const Json& s = sinks.at(length).at(bos);
      const double n = std::stod(length), ratio = s.at("sink_ratio").get<double>();
      double harmonic = 0;
      for (int i = 1; i <= n; ++i) harmonic += 1.0 / i;
      EXPECT_NEAR(s.at("uniform").get<double>(), elastic ? 0 : harmonic / n, 1e-6);
      EXPECT_NEAR(s.at("excess").get<double>(), ratio - s.at("uniform").get<double>(), 1e-6);
      EXPECT_NEAR(s.at("excess_at_offsets").get<double>(), ratio - s.at("uniform_at_offsets").get<double>(), 1e-6);
      EXPECT_NEAR(ratio + s.at("density").get<double>() + s.at("released_mass").get<double>(), 1, 1e-5);
      EXPECT_LE(s.at("alive_fraction").get<double>(), 1);
      EXPECT_EQ(s.at("by_head").at("sink_ratio").size(), 2u);
      EXPECT_EQ(s.at("by_head").at("sink_1").at(1).size(), 2u);
      EXPECT_TRUE(s.contains("sink_1"));
    }
  }
}

void check_texts(const Json& measures) {
  for (const char* bos : {"bos_every_window", "no_bos"}) {
    const Json &wikitext = measures.at("wikitext").at(bos), &lambada = measures.at("lambada").at(bos);
    EXPECT_EQ(wikitext.at("texts"), 2);
    EXPECT_EQ(wikitext.at("by_group").size(), 2u);
    EXPECT_NEAR(wikitext.at("loss_per_word").get<double>() * wikitext.at("words").get<double>(),
                wikitext.at("loss_per_token").get<double>() * wikitext.at("tokens").get<double>(), 0.05);
    EXPECT_EQ(lambada.at("texts"), 2);
    EXPECT_EQ(lambada.at("words"), 9 + 6);
    EXPECT_EQ(lambada.at("tokens"), 43 + 27 - 2) << "one token per byte; the first token of a passage is not scored";
    EXPECT_GT(lambada.at("last_word_loss").get<double>(), 0);
    EXPECT_LE(lambada.at("last_word_accuracy").get<double>(), 1);
  }
  EXPECT_NE(measures.at("wikitext").at("no_bos"), measures.at("wikitext").at("bos_every_window"));
}

void check_lengths(const Json& lengths) {
  for (const char* length : {"32", "64"}) {
    const Json& l = lengths.at(length);
    EXPECT_EQ(l.at("tokens"), 3 * 64);
    const auto positions = l.at("positions").get<std::vector<int64_t>>();
    EXPECT_EQ(positions.front(), 1);
    EXPECT_EQ(positions.back(), std::stoll(length) + 1);
    double total = 0;  // sum of the means by position, weighted by their number of tokens
    for (size_t n = 0; n + 1 < positions.size(); ++n)
      total += l.at("by_position").at(n).get<double>() * static_cast<double>(positions[n + 1] - positions[n]);
    EXPECT_NEAR(total / std::stod(length), l.at("loss").get<double>(), 1e-4);
    EXPECT_EQ(l.at("by_group").size(), 3u);
  }
}

void check_activations(const Json& a, bool collapse = true) {
  EXPECT_EQ(a.at("collapse").is_null(), !collapse);
  if (collapse) {
    EXPECT_EQ(a.at("collapse").at("cosine").size(), 4u)
        << "one value before each of the two layers, one after the last layer and one after the final norm";
    EXPECT_EQ(a.at("collapse").at("effective_rank").size(), 4u);
    EXPECT_EQ(a.at("collapse").at("samples"), 2);
  }
  for (const char* part : {"first_position", "other_positions"}) {
    for (const char* what : {"kurtosis", "rms", "largest"})
      EXPECT_EQ(a.at("residual").at(part).at(what).size(), 3u) << part << " " << what;
  }
  EXPECT_EQ(a.at("keys").at("mean_weight").size(), 16u);
  EXPECT_EQ(a.at("keys").at("next_keys").at(1).size(), 2u);
  EXPECT_EQ(a.at("keys").at("entropy").at(0).size(), 2u);
  double first = 0;
  for (const Json& layer : a.at("keys").at("first_key")) {
    for (const Json& head : layer) first += head.get<double>() / 4;
  }
  EXPECT_NEAR(first, a.at("keys").at("mean_weight").at(0).get<double>(), 1e-5);
}

class ModelMeasures : public testing::Test {
 protected:
  const fs::path folder_ =
      fs::path(testing::TempDir()) /
      ("measures_" + std::to_string(::getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
  void SetUp() override {
    write_tiny_corpus(folder_);
    std::ofstream(folder_ / "wikitext-2-raw-test.txt")
        << " = First = \n\n the lazy dog sleeps under a tree . \n\n = Second = \n\n a quick fox jumps over the dog \n";
    std::ofstream(folder_ / "lambada_openai.jsonl") << R"({"text": "the quick brown fox jumps over the lazy dog"})"
                                                    << "\n"
                                                    << R"({"text": "a dog sleeps under the tree"})"
                                                    << "\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Returns the measures of a model with two layers and random weights.
  Json measures(Normalizer normalizer, int64_t distance_bias_window, double rope_base) const {
    const auto tokenizer = load_tokenizer("bytes");
    ModelConfig c;
    c.vocab_size = tokenizer->vocab_size();
    c.hidden_size = 32;
    c.num_layers = 2;
    c.attention.num_heads = c.attention.num_kv_heads = 2;
    c.attention.head_dim = 16;
    c.mlp.intermediate_size = 64;
    c.max_length = 32;
    c.attention.normalizer = normalizer;
    c.attention.distance_bias_window = distance_bias_window;
    c.positions.rope_base = rope_base;
    LanguageModel model(c, 42);
    fs::create_directories(folder_ / "model");
    model.save(folder_ / "model");
    tokenizer->save(folder_ / "model");
    ModelInputs inputs{folder_ / "model", folder_ / "corpus", folder_, {}, "cpu", false};
    inputs.sequences = {.length = 32, .bos_per_document = false, .eos_per_document = true, .bos_per_sequence = true};
    return measure_model(inputs, {.dtype = "fp32",
                                  .heldout_tokens = 1000,
                                  .sink_lengths = {16, 32},
                                  .sink_tokens = 128,
                                  .lengths = {32, 64},
                                  .length_blocks = 3,
                                  .probe_samples = 3,
                                  .collapse_samples = 2});
  }
};

TEST_F(ModelMeasures, SoftmaxModel_HasAllParts) {
  const Json m = measures(Normalizer::softmax, 0, 1e4);
  EXPECT_EQ(m.at("dtype"), "fp32");
  EXPECT_EQ(m.at("heldout").at("sequences"), 1000 / 31);
  EXPECT_EQ(m.at("heldout").at("whole_split"), false);
  EXPECT_EQ(m.at("heldout").at("bos_per_sequence"), true);
  EXPECT_EQ(m.at("heldout").at("by_group").size(), 32u);
  check_texts(m);
  check_sinks(m.at("sinks"), false);
  check_lengths(m.at("lengths").at("bos_every_window"));
  EXPECT_EQ(m.at("lengths").at("other_rope_base").at("rope_base"), 150000.0);
  check_lengths(m.at("lengths").at("other_rope_base").at("bos_every_window"));
  check_activations(m.at("activations"));
  EXPECT_EQ(m.at("learned"), Json::object());
  check_sinks(m.at("post_hoc").at("sinks"), true);
  check_activations(m.at("post_hoc").at("activations"), false);
  EXPECT_NE(m.at("post_hoc").at("heldout").at("loss"), m.at("heldout").at("loss"));
}

TEST_F(ModelMeasures, LazyModel_HasLearnedParameters) {
  const Json m = measures(Normalizer::elastic, 20, 1.5e5);
  check_sinks(m.at("sinks"), true);
  EXPECT_FALSE(m.contains("post_hoc"));
  EXPECT_FALSE(m.at("lengths").contains("other_rope_base")) << "the model has this RoPE base";
  const Json& learned = m.at("learned");
  EXPECT_EQ(learned.at("tau").at(1).get<std::vector<double>>(), (std::vector<double>{-1, -1}));
  const Json& bias = learned.at("distance_bias");
  EXPECT_EQ(bias.at("window"), 20);
  EXPECT_FALSE(bias.at("gauge_rule").get<std::string>().empty());
  EXPECT_EQ(bias.at("bias").at(0).at(0).size(), bias.at("distances").size());
  EXPECT_EQ(bias.at("distances").front().get<std::vector<int64_t>>(), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(bias.at("distances").back().at(1), 19);
}

TEST(Texts, LengthWindows_MatchHandMadeList) {
  const std::vector<std::vector<int64_t>> stretches{{9, 1, 2, 3, 4}};
  using Windows = std::vector<eval::Window>;
  EXPECT_EQ(length_windows(stretches, 2, {}), (Windows{{{9, 1}, {1, 2}}, {{2, 3}, {3, 4}}}));
  EXPECT_EQ(length_windows(stretches, 2, 0), (Windows{{{0, 1}, {1, 2}}, {{0, 3}, {3, 4}}}));
  EXPECT_EQ(length_windows(stretches, 4, 0), (Windows{{{0, 1, 2, 3}, {1, 2, 3, 4}}}));
}

TEST(Texts, Numbers_AreRoundedAndThinned) {
  EXPECT_EQ(rounded(1.0 / 3), 0.333333);
  EXPECT_EQ(rounded(NAN), Json());
  EXPECT_EQ(thinned({1, 3, 5, 7, 9}, 2), (std::vector<double>{2, 7}));
  EXPECT_EQ(thinned({1, 3}, 4), (std::vector<double>{1, 3}));
}

}  // namespace
}  // namespace lazy::measure
