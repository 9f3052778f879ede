// End-to-end tests of TTT and Titans models, whose mixers are trained online while they read tokens: full pass and
// decoding, packed documents, bf16, saving.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/mixers/counted_budget.h"
#include "model/mixers/registry.h"
#include "model/temporary_folder.h"
#include "ops/device.h"

namespace lazy {
namespace {

struct Shape {
  const char* name;
  ModelConfig config;
};

ModelConfig small_learner(const char* mixer) {
  ModelConfig c{.vocab_size = 61,
                .hidden_size = 32,
                .num_layers = 2,
                .max_length = 64,
                .attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                .mlp = {.intermediate_size = 48}};
  c.mixer = {.type = *kMixerTypes.find(mixer), .heads = 2, .memory_expansion = 2, .persistent = 3, .segment = 8};
  c.init_std = 0.15;  // large enough that the learned state affects the results
  if (std::string(mixer).starts_with("titans")) c.mixer.chunk = 8;
  mixer_kind(c).infer_sizes(c);
  return c;
}

std::vector<Shape> shapes() {
  std::vector<Shape> out = {{"ttt_linear", small_learner("ttt_linear")}, {"ttt_mlp", small_learner("ttt_mlp")}};
  out.push_back({"ttt_linear_bare", small_learner("ttt_linear")});
  out.back().config.mixer.gate = false;
  out.back().config.mixer.chunk = 5;
  out.push_back({"ttt_mlp_hybrid", small_learner("ttt_mlp")});
  out.back().config.mixer.attention_layers = {1};
  for (const char* name : {"titans_lmm", "titans_mac", "titans_mag", "titans_mal"}) {
    out.push_back({name, small_learner(name)});
    if (std::string(name) != "titans_lmm" && std::string(name) != "titans_mac") out.back().config.attention.window = 9;
  }
  out.push_back({"titans_lmm_linear_bare", small_learner("titans_lmm")});
  out.back().config.mixer.memory_depth = 1;
  out.back().config.mixer.gate = false;
  out.back().config.mixer.conv_size = 0;
  out.back().config.mixer.memory_norm = false;
  for (const char* name : {"titans_mac", "titans_mag", "titans_mal"}) {
    out.push_back({name + 7, small_learner(name)});  // a model without persistent tokens, convolutions and norm
    out.back().config.mixer.persistent = 0;
    out.back().config.mixer.conv_size = 0;
    out.back().config.mixer.memory_norm = false;
    if (std::string(name) != "titans_mac") out.back().config.attention.window = 9;
  }
  return out;
}

class LearningModel : public ::testing::TestWithParam<Shape> {
 protected:
  LearningModel() : model(GetParam().config, 3) { model.to(ops::test::test_device()); }
  at::Tensor text(int64_t batch, int64_t length, uint64_t seed = 1) const {
    return at::randint(GetParam().config.vocab_size, {batch, length}, at::detail::createCPUGenerator(seed), at::kLong)
        .to(model.device());
  }
  at::Tensor hidden(const at::Tensor& ids, const ForwardOptions& options = {}) {
    const at::NoGradGuard guard;
    return model.forward(ids, options).hidden;
  }
  LanguageModel model;
};

INSTANTIATE_TEST_SUITE_P(, LearningModel, ::testing::ValuesIn(shapes()),
                         [](const auto& info) { return std::string(info.param.name); });

double off(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// The weights of the memory are initialized from a normal distribution with variance 1 / (number of inputs). A
// convolution is initialized as in PyTorch: uniformly between plus and minus the inverse square root of its number of
// taps.
TEST_P(LearningModel, Initialization_HasDocumentedScale) {
  for (const auto& [name, tensor] : model.parameters()) {
    if (name.find("memory.start_") != std::string::npos) {
      EXPECT_NEAR(tensor.std().item<double>() * std::sqrt(static_cast<double>(tensor.size(1))), 1, 0.15) << name;
    } else if (std::string_view(lazy::name(GetParam().config.mixer.type)).starts_with("titans") &&
               name.ends_with("_conv1d.weight")) {
      const double bound = 1 / std::sqrt(static_cast<double>(tensor.size(2)));
      EXPECT_LE(tensor.abs().max().item<double>(), bound) << name;
      EXPECT_GT(tensor.abs().max().item<double>(), 0.8 * bound) << name;
    }
  }
}

TEST_P(LearningModel, EveryParameter_IsListedAndReceivesGradient) {
  const auto listed = parameter_shapes(GetParam().config);
  ASSERT_EQ(listed.size(), model.stored().size());
  int64_t count = 0;
  for (size_t n = 0; n < listed.size(); ++n) {
    EXPECT_EQ(listed[n].name, model.stored()[n].first);
    EXPECT_EQ(at::IntArrayRef(listed[n].shape), model.stored()[n].second.sizes()) << listed[n].name;
    count += listed[n].count();
  }
  EXPECT_EQ(count, count_parameters(GetParam().config).total);
  const at::Tensor ids = text(2, 41);
  const at::Tensor before = model.loss(ids.slice(1, 0, 40), ids.slice(1, 1));
  before.backward();
  for (const auto& [name, p] : model.parameters()) {
    ASSERT_TRUE(p.grad().defined()) << name;
    EXPECT_TRUE(p.grad().isfinite().all().item<bool>()) << name;
    EXPECT_GT(p.grad().abs().max().item<double>(), 0) << name << " has no effect on the loss";
  }
  {
    const at::NoGradGuard guard;
    for (const auto& [name, p] : model.parameters()) p.sub_(0.02 * p.grad());
  }
  EXPECT_LT(model.loss(ids.slice(1, 0, 40), ids.slice(1, 1)).item<double>(), before.item<double>());
}

// Compares the gradients of all parameters with finite differences of the loss in the direction of the whole gradient.
TEST_P(LearningModel, Gradients_MatchFiniteDifferences) {
  const at::Tensor ids = text(2, 24);
  const auto loss = [&] { return model.loss(ids.slice(1, 0, 23), ids.slice(1, 1)); };
  loss().backward();
  for (const auto& [name, p] : model.parameters()) {
    const at::NoGradGuard guard;
    const double norm = p.grad().norm().item<double>(), step = 3e-3 / (1 + norm);
    const at::Tensor direction = p.grad() / std::max(norm, 1e-12), kept = p.clone();
    p.copy_(kept + step * direction);
    const double up = loss().item<double>();
    p.copy_(kept - step * direction);
    const double down = loss().item<double>();
    p.copy_(kept);
    EXPECT_NEAR((up - down) / (2 * step), norm, 0.03 * norm + 5e-4) << name;
  }
}

// A span is the sequence of tokens between two saved states. The budget allows the program to keep the activations of
// none, one, four or all spans; the remaining activations are recomputed. On a GPU, sums outside of the spans may be
// computed in any order.
TEST_P(LearningModel, KeptActivations_GiveSameResults) {
  model.set_compute_dtype(at::kBFloat16);
  const at::Tensor ids = text(2, 561);
  testing::CountedBudget counted;
  std::vector<at::Tensor> recomputed;
  int64_t spans = 0;
  for (const int64_t room : {0, 1, 4, 100}) {
    counted.memory.free = room, counted.readings = 0;
    for (const auto& [name, p] : model.parameters()) p.mutable_grad().reset();
    at::Tensor loss;
    {
      const ActivationBudget::ForwardPass pass(counted.budget);
      loss = model.loss(ids.slice(1, 0, 560), ids.slice(1, 1));
    }
    EXPECT_EQ(counted.measured(), std::min(room, spans));
    loss.backward();
    counted.budget.end_step();
    std::vector<at::Tensor> results = {loss};
    for (const auto& [name, p] : model.parameters()) results.push_back(p.grad().clone());
    if (room == 0) spans = counted.measured(), recomputed = results;
    EXPECT_GT(spans, 1);
    EXPECT_EQ(counted.measured(), spans);
    const double tolerance = model.device().is_cuda() ? 1e-2 : 0;
    for (size_t n = 0; n < results.size(); ++n) {
      const double error = (results[n] - recomputed[n]).norm().item<double>();
      EXPECT_LE(error, tolerance * recomputed[n].norm().item<double>())
          << room << " " << (n > 0 ? model.parameters()[n - 1].first : "loss");
    }
  }
}

TEST_P(LearningModel, EarlierOutputs_IgnoreLaterTokens) {
  const at::Tensor ids = text(2, 40);
  at::Tensor other = ids.clone();
  other.slice(1, 27).copy_(text(2, 13, 9));
  EXPECT_LT(off(hidden(ids).slice(1, 0, 27), hidden(other).slice(1, 0, 27)), 1e-5);
}

TEST_P(LearningModel, DecodeSteps_MatchFullForward) {
  const at::Tensor ids = text(2, 40), whole = hidden(ids);
  for (const int64_t prefill : {1, 7, 16, 33}) {
    KVCache cache;
    const at::Tensor first = hidden(ids.slice(1, 0, prefill), {.cache = &cache});
    EXPECT_LT(off(first, whole.slice(1, 0, prefill)), 2e-4);
    const KVCache place = cache;  // a snapshot from which the test decodes twice
    for (int round = 0; round < 2; ++round) {
      cache = place;
      for (int64_t t = prefill; t < 40; ++t) {
        EXPECT_LT(off(hidden(ids.slice(1, t, t + 1), {.cache = &cache}), whole.slice(1, t, t + 1)), 2e-4)
            << "token " << t;
      }
    }
  }
}

TEST_P(LearningModel, State_HasConstantSize) {
  KVCache cache;
  const auto size = [&] {
    int64_t sum = 0;
    for (const auto& layer : cache.states) {
      for (const at::Tensor& t : layer) sum += t.numel();
    }
    return sum;
  };
  hidden(text(1, 80), {.cache = &cache});
  const int64_t after_80 = size();
  EXPECT_GT(after_80, 0);
  hidden(text(1, 160), {.cache = &cache});
  EXPECT_EQ(size(), after_80);
}

TEST_P(LearningModel, PackedDocuments_AreIndependent) {
  const at::Tensor a = text(1, 21, 1), b = text(1, 38, 2);
  PackedSequences packed;
  packed.ids = at::cat({a, b}, 1).squeeze(0);
  packed.positions = at::cat({at::arange(21), at::arange(38)}).to(model.device());
  // cu_seqlens is in CPU memory, as in evaluation
  packed.cu_seqlens_q = packed.cu_seqlens_k = at::tensor({0, 21, 59}, at::kInt);
  packed.longest = 38;
  const at::Tensor together = hidden(packed.ids.unsqueeze(0), {.packed = &packed});
  EXPECT_LT(off(together, at::cat({hidden(a), hidden(b)}, 1)), 1e-4);
  // The index tensors that the layers derived from the layout are cached and used again.
  EXPECT_TRUE(packed.layouts);
  EXPECT_EQ(off(hidden(packed.ids.unsqueeze(0), {.packed = &packed}), together), 0);
}

TEST_P(LearningModel, Bf16_IsCloseToFp32) {
  const at::Tensor ids = text(2, 40), wide = hidden(ids);
  model.set_compute_dtype(at::kBFloat16);
  const at::Tensor narrow = hidden(ids).to(at::kFloat);
  EXPECT_LT((narrow - wide).norm().item<double>(), 0.06 * wide.norm().item<double>());
}

TEST_P(LearningModel, SavedModel_RoundTrips) {
  const testing::TemporaryFolder folder;
  model.save(folder.path());
  LanguageModel again = LanguageModel::load(folder.path());
  again.to(model.device());
  const at::NoGradGuard guard;
  EXPECT_EQ(off(again.forward(text(1, 30)).hidden, hidden(text(1, 30))), 0);
  EXPECT_EQ(again.config().mixer.type, GetParam().config.mixer.type);
}

}  // namespace
}  // namespace lazy
