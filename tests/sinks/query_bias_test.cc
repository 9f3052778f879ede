// Checks, on random weights, equations of the study of GPT-2's query bias (sinks/positional_signal.h).
#include "sinks/positional_signal.h"

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

// With biases of queries and keys, a score is the sum of four terms. The third term, Delta_j, depends on key j but not
// on the query.
TEST(QueryBias, Delta_EqualsGammaTimesInput) {
  for (const uint64_t seed : {1, 2, 3}) {
    LanguageModel model = small_gpt2(seed);
    const Read with = read(model, some_text());
    for (int64_t layer = 0; layer < 3; ++layer) {
      const std::string place = fmt::format("layers.{}.attention.", layer);
      const at::Tensor x = with.at.at(place + "input");
      const AttentionProjections p = model.projections(layer);
      const at::Tensor q = at::matmul(x, p.q.to(at::kDouble).t()), k = at::matmul(x, p.k.to(at::kDouble).t());
      const at::Tensor delta = delta_by_head(model, layer, x);  // shape (batch, length, heads)
      for (int64_t head = 0; head < 4; ++head) {
        const auto of = [&](const at::Tensor& t) { return t.to(at::kDouble).slice(-1, 6 * head, 6 * head + 6); };
        const at::Tensor bq = of(p.q_bias), bk = of(p.k_bias), Q = of(q), K = of(k);
        EXPECT_TRUE(at::allclose(delta.select(2, head), at::matmul(K, bq), 1e-12, 1e-12))
            << "gamma . x_j = b_Q . W_k x_j";
        const at::Tensor scores = at::matmul(Q, K.transpose(1, 2)) + at::matmul(Q, bk).unsqueeze(2) +
                                  delta.select(2, head).unsqueeze(1) + at::dot(bq, bk);
        const at::Tensor seen = with.at.at(place + "scores").select(1, head) * std::sqrt(6.0),
                         visible = seen.isneginf().logical_not();
        EXPECT_TRUE(at::allclose(seen.masked_select(visible), scores.masked_select(visible), 1e-4, 1e-4));
      }
      const at::Tensor gamma = at::matmul(p.k.to(at::kDouble).t(), p.q_bias.to(at::kDouble));
      EXPECT_TRUE(at::allclose(gamma_by_head(model, layer).sum(0), gamma, 1e-12, 1e-12))
          << "the sum over heads is W_k^T b_Q";
    }
  }
}

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

    // 1: without the query bias b_Q, the scores of key j decrease by Delta_j + b_Q . b_K for every query.
    Read changed = read(model, some_text(), Interventions().set_zero("h.1.attn.c_attn.bias[0:24]"));
    expect_nothing_before(model, "layers.1.attention.q.projected", changed, plain);
    const at::Tensor of_biases = (p.q_bias * p.k_bias).view({4, 6}).sum(1).to(at::kDouble);
    const at::Tensor lost = (delta_by_head(model, 1, x) + of_biases).permute({0, 2, 1}).unsqueeze(2) / std::sqrt(6.0);
    const at::Tensor before = plain.at.at("layers.1.attention.scores"), visible = before.isfinite();
    EXPECT_TRUE(close((before - changed.at.at("layers.1.attention.scores")).masked_select(visible),
                      lost.expand_as(before).masked_select(visible)));
    EXPECT_TRUE(at::equal(changed.at.at("layers.1.attention.k"), plain.at.at("layers.1.attention.k")));
    EXPECT_FALSE(at::equal(changed.at.at("layers.2.residual"), plain.at.at("layers.2.residual")));

    // 2 and 3: a vector is added to the residual stream after the first layer, at the first position (2) and at the
    // first two positions (3).
    const at::Tensor epe = effective_positions(model, EffectivePositions::literal).to(at::kDouble),
                     stream = plain.at.at("layers.1.residual");
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

    // 4: the token embedding of the first token is set to zero, so that only its position embedding remains.
    changed = read(model, some_text(), Interventions().set_zero("embedding.tokens[0]"));
    EXPECT_TRUE(
        at::equal(changed.at.at("embedding").select(1, 0), plain.at.at("embedding.positions")[0][0].expand({2, 24})));
    EXPECT_TRUE(at::equal(changed.at.at("embedding").slice(1, 1), plain.at.at("embedding").slice(1, 1)));

    // 5: two coordinates of the attention input no longer contribute to the keys, and therefore not to gamma.
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

TEST(QueryBias, Alignment_IsCosine) {
  LanguageModel model = small_gpt2(4);
  const at::Tensor rows = at::sin(at::arange(5 * 24, at::kDouble)).view({5, 24}), cosines = alignment(model, 1, rows);
  const AttentionProjections p = model.projections(1);
  for (int64_t n = 0; n < 5; ++n) {
    const at::Tensor k = at::matmul(p.k.to(at::kDouble), rows[n]), b = p.q_bias.to(at::kDouble);
    EXPECT_NEAR(cosines[n].item<double>(),
                at::dot(k, b).item<double>() / std::sqrt(at::dot(k, k).item<double>() * at::dot(b, b).item<double>()),
                1e-12);
  }
}

// With grouped-query attention, each query head must use the keys of its group.
TEST(QueryBias, GroupedHeads_UseKeysOfTheirGroup) {
  LanguageModel model(small_family("qwen2"), 6);
  const AttentionProjections p = model.projections(1);
  const at::NoGradGuard guard;
  p.q_bias.copy_(at::cos(at::arange(24, at::kFloat)));
  for (int64_t head = 0; head < 4; ++head) {
    const at::Tensor keys = p.k.to(at::kDouble).slice(0, head / 2 * 6, head / 2 * 6 + 6),
                     bias = p.q_bias.to(at::kDouble).slice(0, 6 * head, 6 * head + 6);
    EXPECT_TRUE(at::allclose(gamma_by_head(model, 1)[head], at::matmul(bias, keys), 1e-12, 1e-12));
  }
  EXPECT_THAT(error_of([&] { require_query_bias(model); }), Names({"sinks", "GPT-2"}));
}

TEST(QueryBias, ModelWithoutQueryBias_IsRejected) {
  ModelConfig c = small_config();
  c.positions.kind = PositionKind::learned;
  EXPECT_THAT(error_of([&] { require_query_bias(LanguageModel(c, 1)); }), Names({"sinks", "GPT-2"}));
  require_query_bias(small_gpt2(1));
}

// The effective positional encoding of a position is the output of the first layer for its learned position vector. It
// has three definitions (EffectivePositions), which the test computes directly from the weights of the model.
TEST(EffectivePositions, EffectivePositions_MatchDefinitions) {
  LanguageModel model = small_gpt2(5);
  std::map<std::string, at::Tensor> w;
  for (const auto& [name, tensor] : model.stored()) w[name] = tensor.detach().to(at::kDouble);
  const std::string layer = "model.layers.0.";
  const at::Tensor p = w.at("model.position_embeddings.weight");
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * w.at(layer + name + ".weight") +
           w.at(layer + name + ".bias");
  };
  const auto product = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, w.at(layer + name + ".weight").t()) + w.at(layer + name + ".bias");
  };
  const auto mlp = [&](const at::Tensor& x) {
    return product(at::gelu(product(x, "mlp.up_proj"), "tanh"), "mlp.down_proj");
  };
  const auto close = [](const at::Tensor& ours, const at::Tensor& exact) {
    return at::allclose(ours.to(at::kDouble), exact, 1e-5, 1e-5);
  };
  EXPECT_TRUE(close(position_vectors(model), p));
  EXPECT_TRUE(close(effective_positions(model, EffectivePositions::literal), p + mlp(p)));
  EXPECT_TRUE(
      close(effective_positions(model, EffectivePositions::normed), p + mlp(norm(p, "post_attention_layernorm"))));
  // In a sequence of one token, the token attends only to itself, so attention returns its value vector.
  const at::Tensor h = p + product(product(norm(p, "input_layernorm"), "self_attn.v_proj"), "self_attn.o_proj");
  EXPECT_TRUE(
      close(effective_positions(model, EffectivePositions::block), h + mlp(norm(h, "post_attention_layernorm"))));
}

}  // namespace
}  // namespace lazy::sinks
