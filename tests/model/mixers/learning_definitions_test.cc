// Tests of complete TTT and Titans mixers against their definitions in float64: one sequence, projections as matrix
// products, attention with a mask, and a token-by-token recurrence.
#include <algorithm>
#include <map>

#include "core/error.h"
#include "model/language_model.h"
#include "model/mixers/mixer.h"
#include "model/mixers/recurrence_checks.h"
#include "model/mixers/reference_rules.h"
#include "model/mixers/registry.h"
#include "model/mixers/titans/neural_memory.h"
#include "model/mixers/ttt_rule.h"

namespace lazy {
namespace {

class Definition {
 public:
  Definition(const ModelConfig& config, const Mixer& mixer) : c(config) {
    for (const auto& [name, p] : mixer.parameters()) weights[name] = p.detach().to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {  // x: (length, hidden_size)
    if (std::string_view(name(c.mixer.type)).starts_with("ttt")) return ttt(x);
    if (c.mixer.type == MixerType::titans_lmm) return memory_output(memory(x), x);
    if (c.mixer.type == MixerType::titans_mac) return mac(x);
    const int64_t P = c.mixer.persistent;
    const at::Tensor all = at::cat({w("persistent"), x}), asked = memory(all);
    const at::Tensor place = at::arange(all.size(0));
    if (c.mixer.type == MixerType::titans_mal) {
      const at::Tensor y = memory_output(asked, all), q = rotated(heads(y, "attn.q"), place),
                       k = rotated(heads(y, "attn.k"), place);
      return at::matmul(attention(q, k, heads(y, "attn.v"), {}, {}, {}).slice(0, P), w("attn.o_proj.weight").t());
    }
    const at::Tensor q = heads(x, "attn.q"), places = place.slice(0, P);
    const at::Tensor y = attention(rotated(q, places), rotated(heads(x, "attn.k"), places), heads(x, "attn.v"), q,
                                   heads(w("persistent"), "attn.k"), heads(w("persistent"), "attn.v"));
    return product(y, asked.slice(0, P).flatten(1));
  }

 private:
  at::Tensor w(const std::string& name) const { return weights.at(name); }
  at::Tensor heads(const at::Tensor& x, const std::string& projection) const {
    return at::matmul(x, w(projection + "_proj.weight").t())
        .view({x.size(0), c.attention.num_heads, c.attention.head_dim});
  }
  static at::Tensor rms(const at::Tensor& x, const at::Tensor& weight) {
    return x / (x.square().mean(-1, true) + 1e-6).sqrt() * weight;
  }
  static at::Tensor unit(const at::Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); }

  // Applies RoPE to x (length, heads, dim). The rotated pairs are the dimensions (n, n + dim / 2) or, if interleaved,
  // (2 n, 2 n + 1).
  at::Tensor rotated(const at::Tensor& x, const at::Tensor& place, bool interleaved = false) const {
    const int64_t D = x.size(2), half = D / 2;
    at::Tensor out = x.clone();
    for (int64_t n = 0; n < half; ++n) {
      const int64_t a = interleaved ? 2 * n : n, b = interleaved ? 2 * n + 1 : n + half;
      const at::Tensor angle = (place.to(at::kDouble) *
                                std::pow(c.positions.rope_base, -2.0 * static_cast<double>(n) / static_cast<double>(D)))
                                   .unsqueeze(1);
      const at::Tensor x_a = x.select(2, a), x_b = x.select(2, b);
      out.select(2, a).copy_(x_a * angle.cos() - x_b * angle.sin());
      out.select(2, b).copy_(x_b * angle.cos() + x_a * angle.sin());
    }
    return out;
  }

  // Computes attention. q, k and v have shape (length, heads, dim); the result has shape (length, heads * dim). The
  // prefix, if there is one, is visible to all queries.
  at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                       const at::Tensor& prefix_k, const at::Tensor& prefix_v) const {
    const auto by_head = [](const at::Tensor& x) { return x.transpose(0, 1); };
    const int64_t length = q.size(0);
    const at::Tensor distance = at::arange(length).unsqueeze(1) - at::arange(length);
    at::Tensor seen = distance.ge(0);
    if (c.attention.window > 0) seen = seen.logical_and(distance < c.attention.window);
    at::Tensor s = at::matmul(by_head(q), by_head(k).transpose(1, 2)).masked_fill(seen.logical_not(), -1e30),
               values = by_head(v);
    if (prefix_k.defined()) {
      s = at::cat({at::matmul(by_head(prefix_q), by_head(prefix_k).transpose(1, 2)), s}, 2);
      values = at::cat({by_head(prefix_v), values}, 1);
    }
    return at::matmul((s / std::sqrt(static_cast<double>(c.attention.head_dim))).softmax(-1), values)
        .transpose(0, 1)
        .reshape({length, -1});
  }

  at::Tensor ttt(const at::Tensor& x) const {
    const std::string at = "seq_modeling_block.";
    const int64_t H = c.mixer.heads, D = c.mixer.key_dim, length = x.size(0), K = c.mixer.chunk;
    const auto part = [&](const char* name) {
      return at::matmul(x, w(at + name + ".weight").t()).view({length, H, D});
    };
    const at::Tensor place = at::arange(length).remainder(K);
    const double base_rate = c.mixer.type == MixerType::ttt_mlp ? 0.1 : 1;
    const at::Tensor rate = base_rate / static_cast<double>(D) *
                            at::sigmoid(at::matmul(x, w(at + "learnable_ttt_lr_weight").squeeze(1).t()) +
                                        w(at + "learnable_ttt_lr_bias").squeeze(1));
    TttInputs in{
        .q = rotated(part("q_proj"), place, true).unsqueeze(0),
        .k = rotated(part("k_proj"), place, true).unsqueeze(0),
        .v = part("v_proj").unsqueeze(0),
        .rate = rate.unsqueeze(0),
        .position_scale = (1 / at::arange(1, K + 1).to(at::kDouble) + w(at + "learnable_token_idx")).clamp_min(0),
        .norm_weight = w(at + "ttt_norm_weight"),
        .norm_bias = w(at + "ttt_norm_bias")};
    TttWeights start{{w(at + "W1")}, {w(at + "b1")}};
    if (c.mixer.type == MixerType::ttt_mlp) start.W.push_back(w(at + "W2")), start.b.push_back(w(at + "b2"));
    const at::Tensor out = std::get<0>(reference_ttt(in, initial_ttt_state(start, 1))).view({length, H * D});
    const at::Tensor centered = out - out.mean(-1, true);
    at::Tensor y = centered / (centered.square().mean(-1, true) + 1e-6).sqrt() * w(at + "post_norm.weight") +
                   w(at + "post_norm.bias");
    if (c.mixer.gate) y = at::gelu(at::matmul(x, w(at + "g_proj.weight").t()), "tanh") * y;
    return at::matmul(y, w(at + "o_proj.weight").t());
  }

  // Returns the query, key or value input of the memory with shape (length, heads, dim). It is the result of a
  // projection, a convolution over time, and SiLU.
  at::Tensor stream(const at::Tensor& x, const std::string& name) const {
    const at::Tensor projected = at::matmul(x, w("memory." + name + "_proj.weight").t()),
                     taps = w("memory." + name + "_conv1d.weight").squeeze(1);
    at::Tensor y = at::zeros_like(projected);
    for (int64_t t = 0; t < x.size(0); ++t) {
      for (int64_t j = 0; j < taps.size(1); ++j) {
        const int64_t from = t - (taps.size(1) - 1) + j;
        if (from >= 0) y[t] += taps.select(1, j) * projected[from];
      }
    }
    return (y * at::sigmoid(y)).view({x.size(0), c.mixer.heads, -1});
  }

  MemoryInputs memory_inputs(const at::Tensor& x) const {
    const auto gate = [&](const std::string& name) {
      return (at::matmul(x, w("memory." + name + "_proj.weight").t()) + w("memory." + name + "_proj.bias"))
          .unsqueeze(0);
    };
    const at::Tensor momentum = at::sigmoid(gate("momentum"));
    const at::Tensor step = at::sigmoid(gate("step")) * (1 - momentum) / std::max(c.mixer.key_dim, c.mixer.chunk);
    return {unit(stream(x, "q")).unsqueeze(0),
            unit(stream(x, "k")).unsqueeze(0),
            stream(x, "v").unsqueeze(0),
            step,
            momentum.log(),
            (1 - at::sigmoid(gate("decay"))).log(),
            model_norm()};
  }

  at::Tensor model_norm() const { return c.mixer.memory_norm ? w("memory.model_norm.weight") : at::Tensor(); }

  MemoryState fresh() const {
    MemoryWeights start;
    for (int64_t n = 1; n <= c.mixer.memory_depth; ++n) start.push_back(w("memory.start_" + std::to_string(n)));
    return initial_memory_state(start, 1);
  }

  at::Tensor memory(const at::Tensor& x) const {  // returns (length, heads, dim)
    return std::get<0>(reference_memory(memory_inputs(x), fresh(), c.mixer.chunk)).squeeze(0);
  }

  at::Tensor memory_output(const at::Tensor& answers, const at::Tensor& x) const {
    at::Tensor y = rms(answers, w("memory.norm.weight")).flatten(1);
    if (c.mixer.gate) y = at::silu(at::matmul(x, w("memory.g_proj.weight").t())) * y;
    return at::matmul(y, w("memory.o_proj.weight").t());
  }

  at::Tensor product(const at::Tensor& attended, const at::Tensor& asked) const {
    return at::matmul(rms(attended, w("attn.norm.weight")) * at::silu(rms(asked, w("memory.norm.weight"))),
                      w("o_proj.weight").t());
  }

  // Computes MAC (Memory as Context, a variant of Titans) token by token, so that no token can depend on later tokens.
  at::Tensor mac(const at::Tensor& x) const {
    const int64_t P = c.mixer.persistent, size = c.mixer.segment;
    const at::Tensor questions = unit(stream(x, "q")), persistent = w("persistent");
    MemoryState state = fresh();
    std::vector<at::Tensor> attended, answers, keys, values;
    for (int64_t t = 0; t < x.size(0); ++t) {
      if (t % size == 0) {
        keys = {rotated(heads(persistent, "attn.k"), at::arange(P))};
        values = {heads(persistent, "attn.v")};
        state.base = state.weights;
      }
      const at::Tensor place = at::full({1}, P + t % size), here = x.slice(0, t, t + 1);
      const at::Tensor recalled =
          rms(recall(state.base, model_norm(), questions.slice(0, t, t + 1).unsqueeze(0), at::kDouble).view({1, -1}),
              w("memory.recalled_norm.weight"));
      for (const at::Tensor& one : {recalled, here}) {
        keys.push_back(rotated(heads(one, "attn.k"), place));
        values.push_back(heads(one, "attn.v"));
      }
      const at::Tensor q = rotated(heads(here, "attn.q"), place)[0], k = at::cat(keys),
                       v = at::cat(values);  // q has shape (heads, dim)
      const at::Tensor p =
          ((k * q).sum(-1) / std::sqrt(static_cast<double>(c.attention.head_dim))).softmax(0);  // shape (keys, heads)
      attended.push_back((p.unsqueeze(-1) * v).sum(0).view({-1}));
      MemoryInputs all = memory_inputs(at::stack(attended));
      for (at::Tensor* in : {&all.q, &all.k, &all.v, &all.step, &all.log_momentum, &all.log_keep})
        *in = in->slice(1, t, t + 1);
      auto [answer, next] = reference_memory(all, state, size);
      answers.push_back(answer.view({-1}));
      state = next;
    }
    return product(at::stack(attended), at::stack(answers));
  }

  ModelConfig c;
  std::map<std::string, at::Tensor> weights;
};

struct Defined {
  const char* mixer;
  bool memory_norm = true;
};

class MixerDefinition : public ::testing::TestWithParam<Defined> {};
INSTANTIATE_TEST_SUITE_P(, MixerDefinition,
                         ::testing::Values(Defined{"ttt_linear"}, Defined{"ttt_mlp"}, Defined{"titans_lmm"},
                                           Defined{"titans_mac"}, Defined{"titans_mag"}, Defined{"titans_mal"},
                                           Defined{"titans_lmm", false}, Defined{"titans_mac", false}),
                         [](const auto& info) {
                           return std::string(info.param.mixer) + (info.param.memory_norm ? "" : "_plain");
                         });

TEST_P(MixerDefinition, Mixer_MatchesDefinition) {
  ModelConfig c{.hidden_size = 24, .num_layers = 1, .attention = {.num_heads = 3, .num_kv_heads = 3, .head_dim = 8}};
  c.mixer = {.type = *kMixerTypes.find(GetParam().mixer),
             .heads = 2,
             .conv_size = 3,
             .memory_expansion = 3,
             .persistent = 3,
             .segment = 7,
             .memory_norm = GetParam().memory_norm};
  c.mixer.chunk = std::string_view(name(c.mixer.type)).starts_with("ttt") ? 16 : 7;
  if (c.mixer.type == MixerType::titans_mag || c.mixer.type == MixerType::titans_mal) c.attention.window = 10;
  mixer_kind(c).infer_sizes(c);
  mixer_kind(c).check(c);
  const auto mixer = make_mixer(c, 0, at::kCPU);
  at::manual_seed(11);
  const at::NoGradGuard guard;
  for (const auto& [name, p] : mixer->parameters()) {
    const bool norm = name.find("norm") != std::string::npos && !name.ends_with("bias");
    const bool start = name.find("start_") != std::string::npos;
    const double scale = start && c.mixer.memory_norm                        ? 1
                         : start || name.find("conv1d") != std::string::npos ? 0.5
                                                                             : 0.2;
    p.copy_(at::randn(p.sizes()) * scale + (norm ? 1 : 0));
    // Large steps overshoot if the outputs are normalized, and rounding errors then grow from chunk to chunk.
    if (c.mixer.memory_norm && name == "memory.step_proj.bias") p.sub_(5);
  }
  Definition definition(c, *mixer);
  for (const int64_t length : {1, 7, 31}) {
    const at::Tensor x = at::randn({length, c.hidden_size});
    const at::Tensor ours = mixer->forward(x.unsqueeze(0), 0, {}, nullptr).squeeze(0).to(at::kDouble);
    const at::Tensor exact = definition.forward(x.to(at::kDouble));
    ASSERT_EQ(ours.sizes(), exact.sizes());
    EXPECT_LT((ours - exact).abs().max().item<double>(), 2e-5 * (1 + exact.abs().max().item<double>()))
        << "length " << length;
    EXPECT_GT(exact.abs().max().item<double>(), 1e-2);
  }
}

}  // namespace
}  // namespace lazy
