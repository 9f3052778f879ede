// Tests of attention with output gates, and of sinks with a fixed value. The gates are compared with plain loops, the
// initial weights must be the same with and without gates, and checkpoints in the layout of the released gated models
// must load.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

ModelConfig gated(GateKind gate) {
  ModelConfig c = small_config();
  c.attention.gate = gate;
  return c;
}

at::Tensor some_ids(int64_t batch = 2, int64_t length = 23) {
  return at::randint(0, 61, {batch, length}, at::detail::createCPUGenerator(7), at::TensorOptions().dtype(at::kLong));
}

at::Tensor logits(LanguageModel& model, const at::Tensor& ids) {
  const at::NoGradGuard guard;
  return model.logits(model.forward(ids).hidden);
}

std::map<std::string, at::Tensor> activations(LanguageModel& model, const at::Tensor& ids) {
  const at::NoGradGuard guard;
  std::map<std::string, at::Tensor> out;
  ActivationHooks hooks;
  hooks.read("layers.0.*", [&](const std::string& name, const at::Tensor& value) { out[name] = value.clone(); });
  model.forward(ids, {.activation_hooks = &hooks});
  return out;
}

const at::Tensor& stored(const LanguageModel& model, const std::string& name) {
  for (const auto& [own, tensor] : model.stored()) {
    if (own == name) return tensor;
  }
  throw std::out_of_range(name);
}

// With the same seed, a gated model and a model without gates have the same weights, except for the weights of the
// gates.
TEST(Gate, SameSeed_GivesSameOtherWeights) {
  LanguageModel with(gated(GateKind::element), 3), without(small_config(), 3);
  std::map<std::string, at::Tensor> theirs;
  for (const auto& [name, tensor] : with.parameters())
    theirs[name.substr(std::min(name.size(), name.find("layers.")))] = tensor;
  for (const auto& [name, tensor] : without.parameters()) {
    const auto start = name.find("layers.");
    if (start == std::string::npos || name.find("_proj") == std::string::npos) continue;
    std::string spelled = name.substr(start);
    if (const auto attention = spelled.find("self_attn"); attention != std::string::npos)
      spelled.replace(attention, 9, "attn");
    EXPECT_TRUE(at::equal(theirs.at(spelled), tensor)) << name;
  }
}

// For batch entry b, token t, head h and dimension d, the gated heads must be sigmoid(sum_c W_gc x_btc) heads_bthd. x
// is the input of attention with channels c, and heads_bthd are the heads of the model without gates. g is the index of
// the gate: h with one gate per head, or (h, d) with one gate per element.
TEST(Gate, GatedHeads_MatchDefinition) {
  const at::Tensor ids = some_ids();
  LanguageModel twin(small_config(), 3);
  const auto plain = activations(twin, ids);
  for (const GateKind kind : {GateKind::head, GateKind::element}) {
    LanguageModel model(gated(kind), 3);
    const auto own = activations(model, ids);
    const at::Tensor x = own.at("layers.0.attention.input"), heads = own.at("layers.0.attention.heads"),
                     bare = plain.at("layers.0.attention.heads"), gates = own.at("layers.0.attention.gate"),
                     W = stored(model, "model.layers.0.attn.gate_proj.weight").detach();
    const int64_t H = heads.size(2), D = heads.size(3);
    ASSERT_EQ(gates.size(3), kind == GateKind::head ? 1 : D);
    ASSERT_EQ(W.size(0), kind == GateKind::head ? H : H * D);
    const auto at = [](const at::Tensor& t, std::initializer_list<int64_t> index) {
      at::Tensor out = t;
      for (const int64_t i : index) out = out.select(0, i);
      return out.item<double>();
    };
    for (int64_t t : {0, 5, 22}) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t d = 0; d < D; ++d) {
          double sum = 0;
          for (int64_t c = 0; c < x.size(2); ++c)
            sum += at(W, {kind == GateKind::head ? h : h * D + d, c}) * at(x, {1, t, c});
          const double gate = 1 / (1 + std::exp(-sum));
          EXPECT_NEAR(at(gates, {1, t, h, kind == GateKind::head ? 0 : d}), gate, 1e-6);
          EXPECT_NEAR(at(heads, {1, t, h, d}), gate * at(bare, {1, t, h, d}), 2e-6);
        }
      }
    }
  }
}

// Attention statistics describe the attention weights, so a gate does not change the statistics of the first layer.
TEST(Gate, AttentionStatistics_IgnoreGate) {
  const at::Tensor ids = some_ids();
  const at::NoGradGuard guard;
  LanguageModel with(gated(GateKind::head), 3), without(small_config(), 3);
  const at::Tensor own = with.forward(ids, {.return_stats = true}).stats[0];
  EXPECT_TRUE(at::allclose(own, without.forward(ids, {.return_stats = true}).stats[0], 1e-5, 1e-6));
}

TEST(Gate, GatedModel_StreamsPacksAndRoundTrips) {
  for (const GateKind kind : {GateKind::head, GateKind::element}) {
    LanguageModel model(gated(kind), 3);
    const at::Tensor ids = some_ids(), full = logits(model, ids);
    const at::NoGradGuard guard;
    KVCache cache{.streaming = StreamingCache{2, 40}};
    EXPECT_TRUE(at::allclose(model.logits(model.forward(ids, {.cache = &cache}).hidden), full, 1e-4, 1e-5));
    const auto whole = at::TensorOptions().dtype(at::kInt);
    PackedSequences packed;
    packed.ids = ids.reshape({-1});
    packed.positions = at::arange(ids.size(1)).repeat({2});
    packed.cu_seqlens_q = packed.cu_seqlens_k = at::arange(3, whole) * ids.size(1);
    packed.longest = ids.size(1);
    const at::Tensor one = model.logits(model.forward(packed.ids.unsqueeze(0), {.packed = &packed}).hidden);
    EXPECT_TRUE(at::allclose(one.view(full.sizes()), full, 1e-4, 1e-5));
    const TemporaryFolder folder;
    model.save(folder.path());
    EXPECT_EQ(ModelConfig::from_directory(folder.path()).attention.gate, kind);
    LanguageModel again = LanguageModel::load(folder.path());
    EXPECT_TRUE(at::equal(logits(again, ids), full));
  }
}

// In the released models, q_proj contains for each key-value head first the projections of its queries and then the
// projections of their gates.
TEST(Gate, ReleasedLayout_StoresGatesInQueryProjection) {
  for (const GateKind kind : {GateKind::head, GateKind::element}) {
    SCOPED_TRACE(name(kind));
    ModelConfig c = gated(kind);
    c.family = ModelFamily::qwen3;
    c.attention.qk_norm = true;
    LanguageModel model(c, 5);
    const TemporaryFolder folder;
    model.save(folder.path());
    const auto json = nlohmann::json::parse(read_file(folder / "config.json"));
    EXPECT_EQ(json.at("model_type"), "qwen3");
    EXPECT_EQ(json.at("headwise_attn_output_gate"), kind == GateKind::head);
    EXPECT_EQ(json.at("elementwise_attn_output_gate"), kind == GateKind::element);
    const auto tensors = read_safetensors(folder / "model.safetensors");
    const at::Tensor fused = tensors.at("model.layers.1.self_attn.q_proj.weight");
    const int64_t D = c.attention.head_dim, group = c.attention.num_heads / c.attention.num_kv_heads,
                  each = kind == GateKind::head ? 1 : D, rows = group * (D + each);
    ASSERT_EQ(fused.size(0), c.attention.num_kv_heads * rows);
    EXPECT_EQ(tensors.count("model.layers.1.self_attn.gate_proj.weight"), 0);
    const at::Tensor q = stored(model, "model.layers.1.self_attn.q_proj.weight"),
                     gate = stored(model, "model.layers.1.self_attn.gate_proj.weight");
    for (int64_t head = 0; head < c.attention.num_heads; ++head) {
      const int64_t begin = head / group * rows, within = head % group;
      EXPECT_TRUE(at::equal(fused.narrow(0, begin + within * D, D), q.narrow(0, head * D, D)));
      EXPECT_TRUE(
          at::equal(fused.narrow(0, begin + group * D + within * each, each), gate.narrow(0, head * each, each)));
    }
    const at::Tensor ids = some_ids(), expected = logits(model, ids);
    LanguageModel again = LanguageModel::load(folder.path());
    EXPECT_TRUE(at::equal(logits(again, ids), expected));
    const at::NoGradGuard guard;
    LanguageModel layers = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
    EXPECT_TRUE(at::equal(logits(layers, ids), expected));
  }
}

TEST(Gate, ConfigErrors_NameField) {
  const auto read = [](const std::string& more) {
    const auto json = nlohmann::json::parse(R"({"model_type": "qwen3", "vocab_size": 61, "hidden_size": 24,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
      "intermediate_size": 40, )" + more + "}");
    return error_of([&] { ModelConfig::from_json(json, "config.json"); });
  };
  EXPECT_EQ(read(R"("headwise_attn_output_gate": true)"), "");
  EXPECT_THAT(read(R"("headwise_attn_output_gate": true, "elementwise_attn_output_gate": true)"),
              Names({"config.json", "elementwise_attn_output_gate"}));
  EXPECT_THAT(read(R"("headwise_attn_output_gate": true, "qkv_bias": true)"), Names({"config.json", "qkv_bias"}));
  ModelConfig c = small_family("gpt2");
  c.attention.gate = GateKind::head;
  EXPECT_THAT(error_of([&] { c.validate(); }), Names({"attention_gate", "none", "gpt2"}));
}

// A sink with the fixed value 0 must give off-by-one softmax, exp(s) / (1 + sum exp(s)). The model has no trained
// sinks.
TEST(FixedSink, FixedSink_MatchesOffByOneSoftmax) {
  ModelConfig c = small_config("softmax_sink");
  c.attention.sink_trainable = false;
  LanguageModel model(c, 3);
  for (const auto& [name, tensor] : model.parameters()) EXPECT_EQ(name.find("sinks"), std::string::npos);
  EXPECT_TRUE(at::equal(model.sink(0), at::zeros({4})));
  const at::NoGradGuard guard;
  at::Tensor scores, weights;
  ActivationHooks hooks;
  hooks.read("layers.0.attention.scores", [&](const std::string&, const at::Tensor& t) { scores = t.to(at::kDouble); });
  hooks.read("layers.0.attention.weights", [&](const std::string&, const at::Tensor& t) { weights = t; });
  model.forward(some_ids(), {.activation_hooks = &hooks});
  const at::Tensor e = scores.exp();
  EXPECT_TRUE(at::allclose(weights.to(at::kDouble), e / (1 + e.sum(3, true)), 1e-5, 1e-7));
  const TemporaryFolder folder;
  model.save(folder.path());
  EXPECT_FALSE(ModelConfig::from_directory(folder.path()).attention.sink_trainable);
  LanguageModel again = LanguageModel::load(folder.path());
  EXPECT_TRUE(at::equal(logits(again, some_ids()), logits(model, some_ids())));
}

}  // namespace
}  // namespace lazy
