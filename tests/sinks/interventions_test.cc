// Tests interventions. Each one must change the tensor that it names to the given value, and must not change anything
// that is computed before this tensor. Changed parameters must be restored afterwards.
#include "sinks/interventions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/safetensors.h"
#include "sinks/effective_positions.h"
#include "sinks/scoped_interventions.h"
#include "support/error_of.h"
#include "support/small_gpt2.h"

namespace lazy::sinks {
namespace {

at::Tensor two_texts() { return at::remainder(at::arange(2 * 9, at::kLong) * 7 + 1, 50).view({2, 9}); }

using Seen = std::vector<std::pair<std::string, at::Tensor>>;

Seen pass_under(LanguageModel& model, const Interventions& interventions) {
  const at::NoGradGuard guard;
  const ScopedInterventions applied(model, interventions);
  Seen seen;
  ActivationHooks probes = applied.probes();
  probes.read("*", [&](const std::string& name, const at::Tensor& t) { seen.emplace_back(name, t.clone()); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(two_texts(), options);
  return seen;
}

at::Tensor seen_at(const Seen& seen, const std::string& name) {
  for (const auto& [place, tensor] : seen) {
    if (place == name) return tensor;
  }
  ADD_FAILURE() << name;
  return {};
}

// Checks that `first` is the first tensor that the interventions change. Returns its new value and its old value.
std::pair<at::Tensor, at::Tensor> first_change(const Interventions& interventions, const std::string& first) {
  LanguageModel model = small_gpt2(21, 20);
  const Seen before = pass_under(model, {}), after = pass_under(model, interventions);
  for (size_t n = 0; n < before.size(); ++n) {
    if (at::equal(before[n].second, after[n].second)) continue;
    EXPECT_EQ(before[n].first, first);
    return {after[n].second, before[n].second};
  }
  ADD_FAILURE() << "nothing changed";
  return {};
}

bool close(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-6, 1e-6); }

TEST(Interventions, SetZero_ChangesOnlyIndexedValues) {
  auto [after, before] =
      first_change(Interventions().set_zero("layers.1.attention.q[2:5,1+3,0]"), "layers.1.attention.q");
  at::Tensor expected = before.clone();
  for (int64_t position : {2, 3, 4}) {
    for (int64_t head : {1, 3}) expected.select(1, position).select(1, head).select(1, 0).zero_();
  }
  EXPECT_TRUE(at::equal(after, expected));
  EXPECT_FALSE(at::equal(after, before));
}

TEST(Interventions, Add_AcceptsSumOfTerms) {
  auto [after, before] = first_change(
      Interventions().add("layers.1.residual[0]=embedding[1] - 0.5*embedding.tokens[2] + 3"), "layers.1.residual");
  LanguageModel model = small_gpt2(21, 20);
  const Seen plain = pass_under(model, {});
  at::Tensor expected = before.clone();
  expected.select(1, 0) +=
      seen_at(plain, "embedding").select(1, 1) - 0.5 * seen_at(plain, "embedding.tokens").select(1, 2) + 3;
  EXPECT_TRUE(close(after, expected));
}

TEST(Interventions, Replace_AcceptsPartOfTheSameTensor) {
  auto [after, before] = first_change(Interventions().replace("layers.2.mlp.output[-1]=-@[0]"), "layers.2.mlp.output");
  EXPECT_TRUE(at::equal(after.select(1, 8), -before.select(1, 0)));
  EXPECT_TRUE(at::equal(after.slice(1, 0, 8), before.slice(1, 0, 8)));
}

TEST(Interventions, SwapPositions_ExchangesTwoPositions) {
  auto [after, before] = first_change(Interventions().swap_positions("embedding.positions=0,1"), "embedding.positions");
  EXPECT_TRUE(at::equal(after.select(1, 0), before.select(1, 1)));
  EXPECT_TRUE(at::equal(after.select(1, 1), before.select(1, 0)));
  EXPECT_TRUE(at::equal(after.slice(1, 2), before.slice(1, 2)));
}

TEST(Interventions, SetZero_AppliesToWeights) {
  auto [after, before] =
      first_change(Interventions().set_zero("layers.1.attention.weights[:,:,0]"), "layers.1.attention.weights");
  EXPECT_EQ(after.select(3, 0).abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(after.slice(3, 1), before.slice(3, 1)));
}

TEST(Interventions, Parameters_AreChangedAndRestored) {
  LanguageModel model = small_gpt2(21, 20);
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : model.stored()) before[name] = tensor.detach().clone();
  {
    const ScopedInterventions applied(model, Interventions()
                                                 .set_zero("h.*.attn.c_attn.bias[0:24]")
                                                 .add("transformer.h.1.mlp.c_proj.weight[3]=1")
                                                 .swap_positions("wpe.weight=2,5")
                                                 .set_zero("model.layers.2.self_attn.k_proj.weight"));
    EXPECT_EQ(applied.probes().or_null(), nullptr);
    for (const auto& [name, tensor] : model.stored()) {
      at::Tensor expected = before.at(name).clone();
      if (name.ends_with("q_proj.bias")) expected.zero_();
      // the file stores this matrix transposed, so the row of the file is a column of the model's tensor
      if (name == "model.layers.1.mlp.down_proj.weight") expected.select(1, 3) += 1;
      if (name == "model.layers.2.self_attn.k_proj.weight") expected.zero_();
      if (name == "model.position_embeddings.weight")
        expected = expected.index_select(0, at::tensor({0, 1, 5, 3, 4, 2}, at::kLong)),
        expected = at::cat({expected, before.at(name).slice(0, 6)});
      EXPECT_TRUE(at::equal(tensor, expected)) << name;
    }
  }
  for (const auto& [name, tensor] : model.stored()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
}

// For precisions other than fp32, the model caches concatenated projections. If an intervention changes a weight, this
// cache must be updated.
TEST(Interventions, Parameters_AreChangedInBf16) {
  const at::NoGradGuard guard;
  LanguageModel model = small_gpt2(21, 20);
  model.set_compute_dtype(at::kBFloat16);
  const at::Tensor before = model.forward(two_texts()).hidden;
  {
    const ScopedInterventions applied(model, Interventions().set_zero("model.layers.2.self_attn.v_proj.weight"));
    EXPECT_FALSE(at::equal(model.forward(two_texts()).hidden, before));
  }
  EXPECT_TRUE(at::equal(model.forward(two_texts()).hidden, before));
}

TEST(Interventions, Interventions_ApplyInOrder) {
  LanguageModel model = small_gpt2(21, 20);
  // Interventions are applied in the given order: the value is set to one and then doubled.
  const Seen seen = pass_under(model, Interventions()
                                          .replace("layers.0.mlp.output[3]=1")
                                          .add("layers.0.mlp.output[3]=@[3]")
                                          .set_zero("layers.2.attention.v"));
  EXPECT_TRUE(at::equal(seen_at(seen, "layers.0.mlp.output").select(1, 3), at::full({2, 24}, 2.0f)));
  EXPECT_EQ(seen_at(seen, "layers.2.attention.heads").abs().max().item<double>(), 0);
}

TEST(Interventions, Values_ComeFromFileAndEffectivePositions) {
  LanguageModel model = small_gpt2(21, 20);
  const auto file = std::filesystem::path(testing::TempDir()) / fmt::format("values_{}.safetensors", ::getpid());
  const at::Tensor vector = at::arange(24, at::kFloat);
  write_safetensors(file, {{"v", vector}});
  const Seen plain = pass_under(model, {});
  const Seen seen = pass_under(model, Interventions()
                                          .replace(fmt::format("layers.1.residual[4]={}:v", file.string()))
                                          .add("layers.2.residual[0]=epe[1] - epe[0]"));
  std::filesystem::remove(file);
  EXPECT_TRUE(at::equal(seen_at(seen, "layers.1.residual").select(1, 4), vector.expand({2, 24})));
  const at::Tensor epe = effective_positions(model);
  // Position 0 attends only to itself, so the first intervention, at position 4, does not affect it before layer 2.
  EXPECT_TRUE(close(seen_at(seen, "layers.2.residual").select(1, 0),
                    seen_at(plain, "layers.2.residual").select(1, 0) + epe[1] - epe[0]));
}

TEST(Interventions, InvalidIntervention_IsNamed) {
  LanguageModel model = small_gpt2(21, 20);
  const auto error = [&](const Interventions& interventions) {
    return error_of([&] { pass_under(model, interventions); });
  };
  EXPECT_THAT(error(Interventions().set_zero("layers.1.attention.quays")),
              Names({"--set-zero", "layers.1.attention.quays"}));
  EXPECT_THAT(error(Interventions().add("layers.?.residual=layers.1.residual")),
              Names({"--add", "layers.0.residual", "layers.1.residual"}));
  EXPECT_THAT(error(Interventions().set_zero("layers.1.residual[9]")), Names({"--set-zero", 9}));
  EXPECT_THAT(error(Interventions().set_zero("layers.1.residual[10]")), Names({"--set-zero", 9, 1, 10}));
  EXPECT_THAT(error(Interventions().set_zero("layers.1.residual[0,0,0]")), Names({"--set-zero", 2, 3}));
  EXPECT_THAT(error(Interventions().replace("layers.1.residual[0]=wte.weight")),
              IsMessage("sinks: --replace 'layers.1.residual[0]=wte.weight': expected values of shape [2, 1, 24], "
                        "found [50, 24]"));
  EXPECT_THAT(error(Interventions().replace("layers.1.residual[0]=nothing")),
              Names({"--replace", "FILE.safetensors:NAME", "nothing"}));
  EXPECT_THAT(error_of([] { Interventions().replace("layers.1.residual"); }),
              Names({"--replace", "layers.1.residual", "NAME[INDEX]=VALUE"}));
  EXPECT_THAT(error_of([] { Interventions().replace("a=1 2"); }), Names({"--replace", "+", 2}));
  EXPECT_THAT(error_of([] { Interventions().swap_positions("a=1"); }), Names({"--swap-positions", "NAME=I,J"}));
  EXPECT_THAT(error_of([] { Interventions().set_zero("a[x]"); }), Names({"--set-zero", "2:5", "0+3", "x"}));
  EXPECT_THAT(error(Interventions().swap_positions("layers.1.attention.v=0,30")), Names({"--swap-positions", 9, 30}));
  // If one of several changes fails, the changes that were already made must be undone.
  const at::Tensor weight = model.stored().front().second.detach().clone();
  error(Interventions().set_zero(model.stored().front().first).set_zero("nowhere"));
  EXPECT_TRUE(at::equal(model.stored().front().second, weight));
}

}  // namespace
}  // namespace lazy::sinks
