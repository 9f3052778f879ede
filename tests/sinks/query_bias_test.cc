// Tests the interventions of the study of GPT-2's query bias in models with random weights.
#include "sinks/effective_positions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/mixers/mixer.h"
#include "sinks/interventions.h"
#include "sinks/scoped_interventions.h"
#include "support/error_of.h"
#include "support/small_gpt2.h"
#include "support/small_models.h"

namespace lazy::sinks {
namespace {

struct Read {
  std::map<std::string, at::Tensor> at;
};

Read read(LanguageModel& model, const at::Tensor& ids, const Interventions& interventions = {}) {
  const at::NoGradGuard guard;
  Read out;
  const ScopedInterventions applied(model, interventions);
  ActivationHooks probes = applied.probes();
  probes.read("*", [&](const std::string& name, const at::Tensor& t) { out.at[name] = t.to(at::kDouble); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(ids, options);
  return out;
}

at::Tensor some_text() { return at::remainder(at::arange(2 * 11, at::kLong) * 13 + 2, 40).view({2, 11}); }

TEST(QueryBias, KeyBias_DoesNotAffectWeights) {
  for (const uint64_t seed : {1, 2, 3}) {
    LanguageModel model = small_gpt2(seed);
    const Read with = read(model, some_text());
    ScopedWeightEdits edits;
    for (int64_t layer = 0; layer < 3; ++layer) edits.write(model.projections(layer).k_bias, at::zeros({24}));
    const Read without = read(model, some_text());
    double of_scores = 0;
    for (const auto& [name, tensor] : with.at) {
      const at::Tensor& other = without.at.at(name);
      if (name.ends_with("scores"))
        of_scores = std::max(of_scores, (tensor - other).nan_to_num(0).abs().max().item<double>());
      if (name.ends_with("weights") || name.ends_with("residual")) {
        EXPECT_TRUE(at::allclose(tensor, other, 1e-4, 1e-5)) << name;
      }
    }
    EXPECT_GT(of_scores, 0.1) << "the scores must change";
  }
}

// Checks that every tensor that is computed before `first` is bitwise equal in both passes.
void expect_nothing_before(const LanguageModel& model, const std::string& first, const Read& changed,
                           const Read& plain) {
  for (const std::string& name : hook_point_names(model.config())) {
    if (name == first) return;
    EXPECT_TRUE(at::equal(changed.at.at(name), plain.at.at(name))) << name << " must not change before " << first;
  }
  ADD_FAILURE() << first << " is not a hook point";
}

// The five interventions of the study in the syntax of the command line. Each one changes one layer of a GPT-2 with
// random weights.
TEST(QueryBias, Interventions_ChangeOnlyLaterTensors) {
  for (const uint64_t seed : {1, 2, 3}) {
    LanguageModel model = small_gpt2(seed);
    const Read plain = read(model, some_text());
    const auto close = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-4, 1e-4); };
    const AttentionProjections p = model.projections(1);
    const at::Tensor x = plain.at.at("layers.1.attention.input");

    // Intervention 1: without the query bias b_Q, the scores of key j decrease by Delta_j + b_Q . b_K for every query,
    // where Delta_j = gamma . x_j and gamma = W_k^T b_Q.
    Read changed = read(model, some_text(), Interventions().set_zero("h.1.attn.c_attn.bias[0:24]"));
    expect_nothing_before(model, "layers.1.attention.q.projected", changed, plain);
    const at::Tensor of_biases = (p.q_bias * p.k_bias).view({4, 6}).sum(1).to(at::kDouble);
    const at::Tensor gamma = (p.k.view({4, 6, 24}) * p.q_bias.view({4, 6, 1})).sum(1).to(at::kDouble);  // (heads, 24)
    const at::Tensor lost = (at::matmul(x, gamma.t()) + of_biases).permute({0, 2, 1}).unsqueeze(2) / std::sqrt(6.0);
    const at::Tensor before = plain.at.at("layers.1.attention.scores"), visible = before.isfinite();
    EXPECT_TRUE(close((before - changed.at.at("layers.1.attention.scores")).masked_select(visible),
                      lost.expand_as(before).masked_select(visible)));
    EXPECT_TRUE(at::equal(changed.at.at("layers.1.attention.k"), plain.at.at("layers.1.attention.k")));
    EXPECT_FALSE(at::equal(changed.at.at("layers.2.residual"), plain.at.at("layers.2.residual")));

    // Interventions 2 and 3: a vector is added to the residual stream after the first layer, at the first position (2)
    // and at the first two positions (3).
    const at::Tensor epe = effective_positions(model).to(at::kDouble), stream = plain.at.at("layers.1.residual");
    const std::string away = "layers.1.residual[0]=epe[1] - epe[0]", there = "layers.1.residual[1]=epe[0] - epe[1]";
    changed = read(model, some_text(), Interventions().add(away));
    expect_nothing_before(model, "layers.1.residual", changed, plain);
    const at::Tensor second = changed.at.at("layers.1.residual");
    EXPECT_TRUE(close(second.select(1, 0) - stream.select(1, 0), (epe[1] - epe[0]).expand({2, 24})));
    EXPECT_TRUE(at::equal(second.slice(1, 1), stream.slice(1, 1)));
    changed = read(model, some_text(), Interventions().add(away).add(there));
    expect_nothing_before(model, "layers.1.residual", changed, plain);
    const at::Tensor third = changed.at.at("layers.1.residual");
    EXPECT_TRUE(at::equal(third.select(1, 0), second.select(1, 0)));
    EXPECT_TRUE(close(third.select(1, 1) - stream.select(1, 1), (epe[0] - epe[1]).expand({2, 24})));
    EXPECT_TRUE(at::equal(third.slice(1, 2), stream.slice(1, 2)));

    // Intervention 4: the token embedding of the first token is set to zero, so that only its position embedding
    // remains.
    changed = read(model, some_text(), Interventions().set_zero("embedding.tokens[0]"));
    EXPECT_TRUE(
        at::equal(changed.at.at("embedding").select(1, 0), plain.at.at("embedding.positions")[0][0].expand({2, 24})));
    EXPECT_TRUE(at::equal(changed.at.at("embedding").slice(1, 1), plain.at.at("embedding").slice(1, 1)));

    // Intervention 5: two coordinates of the attention input no longer contribute to the keys, and therefore not to
    // gamma (Delta_j = gamma . input_j).
    changed = read(model, some_text(), Interventions().set_zero("h.1.attn.c_attn.weight[3+17,24:48]"));
    expect_nothing_before(model, "layers.1.attention.k.projected", changed, plain);
    const at::Tensor columns = p.k.to(at::kDouble).index_select(1, at::tensor({3, 17}, at::kLong));
    const at::Tensor given =
        at::matmul(x.index_select(2, at::tensor({3, 17}, at::kLong)), columns.t()).view({2, 11, 4, 6});
    EXPECT_TRUE(
        close(plain.at.at("layers.1.attention.k.projected") - changed.at.at("layers.1.attention.k.projected"), given));
    EXPECT_TRUE(at::equal(changed.at.at("layers.1.attention.q"), plain.at.at("layers.1.attention.q")));
  }
}

// EPE_i = p_i + MLP(p_i), computed directly from the weights of the model.
TEST(EffectivePositions, EffectivePositions_MatchDefinition) {
  LanguageModel model = small_gpt2(5);
  std::map<std::string, at::Tensor> w;
  for (const auto& [name, tensor] : model.stored()) w[name] = tensor.detach().to(at::kDouble);
  const at::Tensor p = w.at("model.position_embeddings.weight");
  const auto product = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, w.at("model.layers.0." + name + ".weight").t()) + w.at("model.layers.0." + name + ".bias");
  };
  const at::Tensor exact = p + product(at::gelu(product(p, "mlp.up_proj"), "tanh"), "mlp.down_proj");
  EXPECT_TRUE(at::allclose(effective_positions(model).to(at::kDouble), exact, 1e-5, 1e-5));
  EXPECT_THAT(error_of([] {
                LanguageModel rotated(small_config(), 1);
                effective_positions(rotated);
              }),
              Names({"sinks", "positions", "rope"}));
}

}  // namespace
}  // namespace lazy::sinks
