// Tests of GraphedStateRunner, which processes one token per call and updates the states in place, against the ordinary
// forward pass of the model. With LAZY_TEST_DEVICE=cuda, a CUDA graph of this pass is captured and replayed. On a CPU,
// the pass is called again.
#include "model/graphed_state_runner.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/mixers/recurrence_cases.h"
#include "model/mixers/registry.h"
#include "model/own_stream.h"

namespace lazy {
namespace {

using testing::here;

constexpr int64_t kVocabulary = 97;

LanguageModel model_of(const std::string& name, at::ScalarType dtype = at::kFloat) {
  const MixerKind& kind = *find_mixer(name);
  ModelConfig c{.vocab_size = kVocabulary,
                .hidden_size = 128,
                .num_layers = 2,
                .max_length = 256,
                .mlp = {.intermediate_size = 80},
                .norm = {.eps = kind.norm_eps}};
  use_mixer(c, kind);
  c.mlp.intermediate_size = 80;
  c.init_std = 0.12;
  const bool mamba2 = name == "mamba2", square = name.starts_with("ttt") || name.starts_with("titans");
  c.mixer.heads = square ? 2 : 4;
  c.mixer.key_dim = square ? 64 : mamba2 ? 24 : 16;
  c.mixer.value_dim = square ? 64 : 32;
  c.mixer.state_size = 24;
  c.mixer.groups = mamba2 ? 2 : 1;
  c.mixer.chunk = 16;
  LanguageModel model(c, 7);
  model.set_compute_dtype(dtype);
  model.to(ops::test::test_device());
  return model;
}

at::Tensor random_ids(int64_t batch, int64_t length, uint64_t seed) {
  return here(at::randint(0, kVocabulary, {batch, length}, at::detail::createCPUGenerator(seed),
                          at::TensorOptions().dtype(at::kLong)));
}

// A sequence with its own cache. It is decoded either by the ordinary forward pass or by GraphedStateRunner.
struct Text {
  LanguageModel& model;
  at::Tensor ids;
  KVCache cache = {};

  void read(int64_t tokens) { model.forward(ids.narrow(1, cache.length, tokens), {.cache = &cache}); }
  at::Tensor next(GraphedStateRunner* steps) {
    const at::Tensor token = ids.narrow(1, cache.length, 1);
    return (steps ? steps->logits(token, cache) : model.logits(model.forward(token, {.cache = &cache}).hidden)).clone();
  }
};

class GraphedStateRunnerOf : public ::testing::TestWithParam<std::string> {
 protected:
  // The results must be bitwise equal, except for TTT. Its matrix products may add in a different order if the state
  // has different strides.
  void expect_same(const at::Tensor& found, const at::Tensor& expected, int64_t token,
                   at::ScalarType dtype = at::kFloat) const {
    const double most = !GetParam().starts_with("ttt") ? 0 : dtype == at::kFloat ? 1e-3 : 0.05;
    EXPECT_LE(testing::distance(found, expected), most * expected.abs().max().item<double>()) << "token " << token;
  }

  const at::NoGradGuard no_grad_;
  const OwnStream stream_{ops::test::test_device()};
};

// The text is longer than two mini-batches of TTT, and the prompt ends in the middle of a mini-batch.
TEST_P(GraphedStateRunnerOf, Tokens_MatchModelForward) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    LanguageModel model = model_of(GetParam(), dtype);
    for (const int64_t batch : {1, 2}) {
      GraphedStateRunner steps(model, /*record=*/true);
      Text text{model, random_ids(batch, 70, 3)}, plain = text;
      text.read(11);
      plain.read(11);
      while (text.cache.length < 60) {
        expect_same(text.next(&steps), plain.next(nullptr), plain.cache.length, dtype);
      }
      text.read(5);  // an ordinary pass over several tokens between the decode steps
      plain.read(5);
      while (text.cache.length < 70) {
        expect_same(text.next(&steps), plain.next(nullptr), plain.cache.length, dtype);
      }
      steps.forget(text.cache);
    }
  }
}

// Several caches use the same GraphedStateRunner in turn. One of the caches is destroyed, and a new cache is created at
// the same address. The results must still match the model.
TEST_P(GraphedStateRunnerOf, InterleavedCaches_MatchModelForward) {
  LanguageModel model = model_of(GetParam());
  GraphedStateRunner steps(model, /*record=*/true);
  std::vector<Text> texts;
  for (uint64_t n = 0; n < 3; ++n) texts.push_back({model, random_ids(1, 80, n)});
  std::vector<Text> plain = texts;
  for (size_t n = 0; n < texts.size(); ++n) {
    texts[n].read(3 + 4 * static_cast<int64_t>(n));
    plain[n].read(3 + 4 * static_cast<int64_t>(n));
  }
  for (int64_t round = 0; round < 40; ++round) {
    for (size_t n = 0; n < texts.size(); ++n) {
      if (round % (static_cast<int64_t>(n) + 1) != 0) continue;
      expect_same(texts[n].next(&steps), plain[n].next(nullptr), plain[n].cache.length);
    }
    if (round == 20) {
      steps.forget(texts[0].cache);
      texts[0].cache = plain[0].cache = {};
    }
  }
  for (const Text& text : texts) steps.forget(text.cache);
}

INSTANTIATE_TEST_SUITE_P(Mixers, GraphedStateRunnerOf,
                         ::testing::Values("retnet", "mamba2", "delta_net", "gated_delta_net", "ttt_linear", "ttt_mlp",
                                           "titans_lmm"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace lazy
