// Compares the scoring engine with a plain evaluation of the model, which scores one window at a time, without shared
// prefixes and without skipping positions.
#include "eval/score.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "../train/ranks.h"
#include "core/error.h"
#include "eval/batch.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"
#include "small_model.h"

namespace lazy::eval {
namespace {

constexpr int64_t kVocabulary = 97;

ModelConfig tiny() { return grouped_config(kVocabulary); }

ModelConfig lazy_kind() {
  ModelConfig config = tiny();
  config.attention.normalizer = Normalizer::elastic;
  config.attention.distance_bias_window = 20;
  config.attention.distance_bias_init_std = 0.5;
  return config;
}

ModelConfig sliding() {
  ModelConfig config = tiny();
  config.attention.window = 7;
  config.tie_embeddings = true;
  return config;
}

// Returns the configuration of a model with LongRoPE. The test windows have up to 64 tokens, some fewer and some more
// than the model's original length.
ModelConfig longrope() {
  ModelConfig config = tiny();
  const auto pairs = static_cast<size_t>(config.rotary_dim() / 2);
  config.positions.rope_scaling = {.type = "longrope", .factor = 2, .original_length = 28};
  config.positions.rope_scaling.pair_factors.assign(pairs, 1.2);
  config.positions.long_pair_factors.assign(pairs, 6);
  return config;
}

ModelConfig mixing(MixerType type) {
  ModelConfig config = small_config(kVocabulary);
  config.mixer = {.type = type,
                  .heads = 2,
                  .chunk = 8,
                  .memory_expansion = 2,
                  .segment = 8};  // short, so that the test windows have several chunks
  config.init_std = 0.15;         // a larger value would let rounding errors grow from segment to segment in Titans MAC
  infer_mixer_sizes(config);
  return config;
}
ModelConfig gated_delta_net() { return mixing(MixerType::gated_delta_net); }
ModelConfig ttt_mlp() { return mixing(MixerType::ttt_mlp); }
ModelConfig titans_mac() { return mixing(MixerType::titans_mac); }
ModelConfig titans_mal() { return mixing(MixerType::titans_mal); }

std::vector<int32_t> random_ids(std::mt19937& random, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % kVocabulary));
  return ids;
}

// Returns requests of every kind that occurs in the benchmarks.
std::vector<Request> questions() {
  std::mt19937 random(3);
  std::vector<Request> out;
  for (int64_t length : {1, 5, 23, 60}) {
    const auto context = random_ids(random, length);
    // one context with several choices of different lengths
    for (int64_t choice : {3, 1, 8, 2}) out.push_back({context, random_ids(random, choice)});
    for (int n = 0; n < 2; ++n) out.push_back({context, random_ids(random, 1)});  // two answers of one token each
    const auto ending = random_ids(random, 6);
    for (int n = 0; n < 2; ++n) {  // two different contexts, which both end in the same tokens
      auto other = context;
      const auto more = random_ids(random, 2 + n);
      other.insert(other.end(), more.begin(), more.end());
      out.push_back({other, ending});
    }
    out.push_back({random_ids(random, 9), random_ids(random, 4)});  // a request that shares nothing with another
  }
  out.push_back({random_ids(random, 200), random_ids(random, 5)});  // this context exceeds the model's length
  out.push_back({out.back().context, random_ids(random, 2)});
  out.push_back(out.back());  // a duplicate request
  return out;
}

struct Kind {
  const char* name;
  ModelConfig (*config)();
};

class Scores : public testing::TestWithParam<Kind> {};

TEST_P(Scores, MatchPlainEvaluation) {
  LanguageModel model(GetParam().config(), 11);
  const auto requests = questions();
  const int64_t max_length = 64;
  std::vector<Window> windows;
  for (const Request& request : requests) windows.push_back(window_of(request, max_length));
  // Appends the greedy continuation of a context, so that `greedy` is true for at least one window.
  Window greedy = windows[0];
  for (int n = 0; n < 3; ++n) {
    const std::vector<int64_t> wide(greedy.input.begin(), greedy.input.end());
    const at::Tensor logits = model.logits(model.forward(at::tensor(wide).unsqueeze(0)).hidden);
    greedy.targets.assign(1, static_cast<int32_t>(logits[0][-1].argmax().item<int64_t>()));
    if (n < 2) greedy.input.push_back(greedy.targets[0]);
  }
  windows.push_back(greedy);
  for (const int64_t batch_size : {0, 1, 3, 1000}) {
    const auto found = score(model, windows, {batch_size, ""});
    ASSERT_EQ(found.size(), windows.size());
    int64_t greedy_count = 0;
    for (size_t i = 0; i < windows.size(); ++i) {
      const Score expected = plain_score(model, windows[i]);
      EXPECT_NEAR(found[i].log_likelihood, expected.log_likelihood, 1e-4 * windows[i].targets.size()) << i;
      EXPECT_EQ(found[i].greedy, expected.greedy) << i;
      greedy_count += found[i].greedy;
    }
    EXPECT_GE(greedy_count, 1);
  }
  const auto cut = score(model, requests, max_length, {0, ""});
  const auto uncut = score(model, windows, {0, ""});
  for (size_t i = 0; i < cut.size(); ++i) EXPECT_NEAR(cut[i].log_likelihood, uncut[i].log_likelihood, 1e-4) << i;
}

TEST_P(Scores, AreTheSameForAnyNumberOfRanks) {
  const auto requests = questions();
  LanguageModel alone(GetParam().config(), 11);
  const auto expected = score(alone, requests, 64, {.title = "", .targets = true});
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(expected[i].targets.size(), requests[i].continuation.size());
    double sum = 0;
    bool greedy = true;
    for (const TargetScore& t : expected[i].targets) sum += t.log_likelihood, greedy = greedy && t.greedy;
    EXPECT_DOUBLE_EQ(sum, expected[i].log_likelihood);
    EXPECT_EQ(greedy, expected[i].greedy);
  }
  train::as_ranks(3, [&](distributed::Communicator& communicator) {
    LanguageModel model(GetParam().config(), 11);
    const auto found = score(model, requests, 64, {.title = "", .targets = true, .ranks = &communicator});
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].targets.size(), expected[i].targets.size());
      for (size_t t = 0; t < found[i].targets.size(); ++t) {
        EXPECT_NEAR(found[i].targets[t].log_likelihood, expected[i].targets[t].log_likelihood, 1e-4);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, Scores,
                         testing::Values(Kind{"softmax", tiny}, Kind{"lazy", lazy_kind}, Kind{"window", sliding},
                                         Kind{"longrope", longrope}, Kind{"gated_delta_net", gated_delta_net},
                                         Kind{"ttt_mlp", ttt_mlp}, Kind{"titans_mac", titans_mac},
                                         Kind{"titans_mal", titans_mal}),
                         [](const auto& info) { return info.param.name; });

TEST(Score, Ranks_DivideTheWindows) {
  const auto requests = questions();
  LanguageModel alone(tiny(), 11);
  const auto expected = score(alone, requests, 64, {0, ""});
  for (const int ranks : {2, 3, 5}) {
    train::as_ranks(ranks, [&](distributed::Communicator& communicator) {
      LanguageModel model(tiny(), 11);
      const auto found = score(model, requests, 64, {.batch_size = 0, .title = "", .ranks = &communicator});
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i].log_likelihood, expected[i].log_likelihood, 1e-4) << i;
        EXPECT_EQ(found[i].greedy, expected[i].greedy) << i;
      }
      // There are more ranks than windows, so some ranks have no work.
      EXPECT_NEAR(
          score(model, std::vector<Window>{{{1, 2}, {3}}}, {.batch_size = 0, .title = "", .ranks = &communicator})[0]
              .log_likelihood,
          plain_score(model, {{1, 2}, {3}}).log_likelihood, 1e-5);
    });
  }
}

TEST(Score, IdOutsideVocabulary_IsRejected) {
  LanguageModel model(tiny(), 1);
  EXPECT_THROW(score(model, std::vector<Window>{{{1, kVocabulary}, {2}}}, {}), Error);
  EXPECT_THROW(score(model, std::vector<Window>{{{1, 2}, {-1}}}, {}), Error);
  EXPECT_THROW(score(model, std::vector<Window>{{{1, 2}, {}}}, {}), Error);
  EXPECT_TRUE(score(model, std::vector<Window>{}, {}).empty());
}

TEST(Requests, LongRequest_IsTruncatedAtStart) {
  EXPECT_EQ(window_of({{1, 2, 3}, {4, 5}}, 10), (Window{{1, 2, 3, 4}, {4, 5}}));
  EXPECT_EQ(window_of({{1, 2, 3}, {4, 5}}, 4), (Window{{1, 2, 3, 4}, {4, 5}}));
  EXPECT_EQ(window_of({{1, 2, 3}, {4, 5}}, 2), (Window{{3, 4}, {4, 5}}));
  EXPECT_THROW(window_of({{1, 2, 3}, {4, 5}}, 1), Error);
  EXPECT_THROW(window_of({{1}, {}}, 4), Error);
  EXPECT_THROW(window_of({{}, {1}}, 4), Error);
}

TEST(Prefix, AdjacentWindowsWithCommonPrefix_FormGroup) {
  // the first three windows share a prefix of 3 tokens
  const std::vector<Window> windows = {{{1, 2, 3, 4, 5}, {9}}, {{1, 2, 3, 6}, {9}}, {{1, 2, 3}, {9}},
                                       {{7, 2, 3}, {9}},  // this window shares no prefix with its neighbors
                                       {{8, 8, 8, 8}, {9}},    {{8, 8, 8, 8}, {9}},  // identical windows
                                       {{8, 1}, {9}}};  // one common token is not enough to form a group
  EXPECT_EQ(group_by_prefix(windows),
            (std::vector<PrefixGroup>{{0, 3, 3, 6}, {3, 1, 0, 3}, {4, 2, 4, 4}, {6, 1, 0, 2}}));
  EXPECT_TRUE(group_by_prefix({}).empty());
}

TEST(Prefix, ContainedWindow_IsComputedOnce) {
  const std::vector<Window> windows = {{{1, 2, 3, 4}, {9}},
                                       {{1, 2, 3, 4}, {8}},
                                       {{1, 2}, {9}},  // the third window is a prefix of the first one
                                       // {1, 2, 5} is not a prefix of the first window, so it is computed separately
                                       {{1, 2, 5}, {9}},
                                       // {7, 8} is longer than {7}, so both are computed
                                       {{7}, {9}},
                                       {{7, 8}, {9}}};
  EXPECT_EQ(group_contained(windows),
            (std::vector<PrefixGroup>{{0, 3, 4, 4}, {3, 1, 0, 3}, {4, 1, 0, 1}, {5, 1, 0, 2}}));
  EXPECT_TRUE(group_contained({}).empty());
}

// Scores windows through a streaming cache. The results must match a model that is called token by token.
TEST(StreamingScore, StreamingCache_MatchesTokenByTokenEvaluation) {
  ModelConfig c{.vocab_size = 61,
                .hidden_size = 32,
                .num_layers = 2,
                .max_length = 32,
                .attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8},
                .mlp = {.intermediate_size = 40}};
  c.init_std = 0.2;
  c.attention.normalizer = Normalizer::elastic;
  c.attention.distance_bias_window = 10;
  LanguageModel model(c, 3);
  const at::NoGradGuard guard;
  std::vector<Window> windows;
  for (int32_t length : {40, 5, 23}) {
    Window w;
    for (int32_t t = 0; t <= length; ++t) w.input.push_back((t * 7 + length) % 61);
    w.targets.assign(w.input.end() - length / 2, w.input.end());
    w.input.pop_back();
    windows.push_back(w);
  }
  const StreamingCache keep{2, 6};
  const auto scores = score(model, windows, {.batch_size = 2, .title = "", .cache = keep});
  for (size_t i = 0; i < windows.size(); ++i) {
    const Window& w = windows[i];
    KVCache cache{.streaming = keep};
    double sum = 0;
    bool greedy = true;
    for (size_t t = 0; t < w.input.size(); ++t) {
      const at::Tensor logits =
          model.logits(model.forward(at::full({1, 1}, w.input[t], at::kLong), {.cache = &cache}).hidden)[0][0];
      const auto first = w.input.size() - w.targets.size();
      if (t < first) continue;
      const int32_t target = w.targets[t - first];
      sum += at::log_softmax(logits, 0)[target].item<double>();
      greedy = greedy && logits.argmax().item<int64_t>() == target;
    }
    EXPECT_NEAR(scores[i].log_likelihood, sum, 1e-5 * std::abs(sum));
    EXPECT_EQ(scores[i].greedy, greedy);
  }
  const auto plain = score(model, windows, {.batch_size = 2, .title = ""});
  EXPECT_GT(std::abs(plain[0].log_likelihood - scores[0].log_likelihood), 1e-2);
}

}  // namespace
}  // namespace lazy::eval
