// The identities of the GPT-2 study on random weights.
#include "sinks/query_bias.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "model/probes.h"
#include "sinks/positions.h"
#include "sinks/weight_edits.h"
#include "support/error_of.h"

namespace lazy::sinks {
namespace {

LanguageModel biased_model(uint64_t seed, int64_t kv_heads) {
  ModelConfig c;
  c.vocab_size = 40;
  c.hidden_size = 28;
  c.num_layers = 3;
  c.num_heads = 4;
  c.num_kv_heads = kv_heads;
  c.head_dim = 10;
  c.intermediate_size = 36;
  c.max_length = 18;
  c.positions = "learned";
  c.attention_bias = true;
  c.init_std = 0.3;
  LanguageModel model(c, seed);
  const at::NoGradGuard guard;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const AttentionProjections p = model.projections(layer);
    for (const at::Tensor& bias : {p.q_bias, p.k_bias, p.v_bias}) bias.copy_(at::cos(at::arange(bias.numel(), at::kFloat) * double(seed + 2)));
  }
  return model;
}

struct Read {
  std::map<std::string, at::Tensor> at;
};

Read read(LanguageModel& model, const at::Tensor& ids) {
  const at::NoGradGuard guard;
  Read out;
  Probes probes;
  probes.read("layers.*", [&](const std::string& name, const at::Tensor& t) { out.at[name] = t.to(at::kDouble); });
  ForwardOptions options;
  options.probes = &probes;
  model.forward(ids, options);
  return out;
}

at::Tensor some_text() { return at::remainder(at::arange(2 * 11, at::kLong) * 13 + 2, 40).view({2, 11}); }

// Scores are a sum of four terms; the third is Delta_j, whatever the query.
TEST(QueryBias, DeltaIsGammaTimesTheInput) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const int64_t kv_heads : {4, 2}) {
      LanguageModel model = biased_model(seed, kv_heads);
      const Read with = read(model, some_text());
      for (int64_t layer = 0; layer < 3; ++layer) {
        const std::string place = fmt::format("layers.{}.attention.", layer);
        const at::Tensor x = with.at.at(place + "input");
        const AttentionProjections p = model.projections(layer);
        const at::Tensor q = at::matmul(x, p.q.to(at::kDouble).t()), k = at::matmul(x, p.k.to(at::kDouble).t());
        const at::Tensor delta = delta_by_head(model, layer, x);  // (batch, length, heads)
        for (int64_t head = 0; head < 4; ++head) {
          const int64_t group = head / (4 / kv_heads);
          const auto of = [](const at::Tensor& t, int64_t n) { return t.slice(-1, 10 * n, 10 * n + 10); };
          const at::Tensor bq = of(p.q_bias.to(at::kDouble), head), bk = of(p.k_bias.to(at::kDouble), group), Q = of(q, head), K = of(k, group);
          EXPECT_TRUE(at::allclose(delta.select(2, head), at::matmul(K, bq), 1e-12, 1e-12)) << "gamma . x_j = b_Q . W_k x_j";
          const at::Tensor scores = at::matmul(Q, K.transpose(1, 2)) + at::matmul(Q, bk).unsqueeze(2) + delta.select(2, head).unsqueeze(1) + at::dot(bq, bk);
          const at::Tensor seen = with.at.at(place + "scores").select(1, head) * std::sqrt(10.0), visible = seen.isneginf().logical_not();
          EXPECT_TRUE(at::allclose(seen.masked_select(visible), scores.masked_select(visible), 1e-4, 1e-4));
        }
        EXPECT_TRUE(at::allclose(gamma_by_head(model, layer).sum(0), at::matmul(p.k.to(at::kDouble).view({kv_heads, 10, 28}).repeat_interleave(4 / kv_heads, 0).reshape({40, 28}).t(), p.q_bias.to(at::kDouble)), 1e-12, 1e-12));
      }
    }
  }
}

TEST(QueryBias, DroppingTheKeyBiasChangesNoWeight) {
  for (const uint64_t seed : {1, 2, 3}) {
    LanguageModel model = biased_model(seed, 2);
    const Read with = read(model, some_text());
    WeightEdits edits;
    for (int64_t layer = 0; layer < 3; ++layer) edits.write(model.projections(layer).k_bias, at::zeros({20}));
    const Read without = read(model, some_text());
    double of_scores = 0;
    for (const auto& [name, tensor] : with.at) {
      const at::Tensor& other = without.at.at(name);
      if (name.ends_with("scores")) of_scores = std::max(of_scores, (tensor - other).nan_to_num(0).abs().max().item<double>());
      if (name.ends_with("weights") || name.ends_with("residual")) EXPECT_TRUE(at::allclose(tensor, other, 1e-4, 1e-5)) << name;
    }
    EXPECT_GT(of_scores, 0.1) << "the scores do change";
  }
}

TEST(QueryBias, AlignmentIsACosine) {
  LanguageModel model = biased_model(4, 4);
  const at::Tensor rows = at::sin(at::arange(5 * 28, at::kDouble)).view({5, 28}), cosines = alignment(model, 1, rows);
  const AttentionProjections p = model.projections(1);
  for (int64_t n = 0; n < 5; ++n) {
    const at::Tensor k = at::matmul(p.k.to(at::kDouble), rows[n]), b = p.q_bias.to(at::kDouble);
    EXPECT_NEAR(cosines[n].item<double>(), at::dot(k, b).item<double>() / std::sqrt(at::dot(k, k).item<double>() * at::dot(b, b).item<double>()), 1e-12);
  }
}

TEST(QueryBias, RefusesModelsWhereTheTermIsAnother) {
  ModelConfig c = biased_model(1, 4).config();
  c.positions = "rope";
  EXPECT_THAT(error_of([&] { require_query_bias(LanguageModel(c, 1)); }), testing::HasSubstr("found rotated ones"));
  c.positions = "learned";
  c.attention_bias = false;
  EXPECT_THAT(error_of([&] { require_query_bias(LanguageModel(c, 1)); }), testing::HasSubstr("found no bias"));
  require_query_bias(biased_model(1, 4));
}

// EPE from its definition, with the model's own weights.
TEST(EffectivePositions, ThreeReadings) {
  LanguageModel model = biased_model(5, 4);
  std::map<std::string, at::Tensor> w;
  for (const auto& [name, tensor] : model.stored()) w[name] = tensor.detach().to(at::kDouble);
  const at::Tensor p = w.at("model.position_embeddings.weight");
  const auto norm = [&](const at::Tensor& x, const std::string& name) { return x / (x.square().mean(-1, true) + model.config().norm_eps).sqrt() * w.at(name); };
  const auto mlp = [&](const at::Tensor& x) {
    const at::Tensor gate = at::matmul(x, w.at("model.layers.0.mlp.gate_proj.weight").t()), up = at::matmul(x, w.at("model.layers.0.mlp.up_proj.weight").t());
    return at::matmul(at::silu(gate) * up, w.at("model.layers.0.mlp.down_proj.weight").t());
  };
  EXPECT_TRUE(at::allclose(position_vectors(model).to(at::kDouble), p));
  EXPECT_TRUE(at::allclose(effective_positions(model, EffectivePositions::literal).to(at::kDouble), p + mlp(p), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(effective_positions(model, EffectivePositions::normed).to(at::kDouble), p + mlp(norm(p, "model.layers.0.post_attention_layernorm.weight")), 1e-5, 1e-5));
  // A sequence of one token attends to itself alone: attention passes its value on.
  const at::Tensor v = at::matmul(norm(p, "model.layers.0.input_layernorm.weight"), w.at("model.layers.0.self_attn.v_proj.weight").t()) + w.at("model.layers.0.self_attn.v_proj.bias");
  const at::Tensor h = p + at::matmul(v, w.at("model.layers.0.self_attn.o_proj.weight").t());
  EXPECT_TRUE(at::allclose(effective_positions(model, EffectivePositions::block).to(at::kDouble), h + mlp(norm(h, "model.layers.0.post_attention_layernorm.weight")), 1e-5, 1e-5));
}

}  // namespace
}  // namespace lazy::sinks
