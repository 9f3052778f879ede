// Tests of the fast-weights kernels against the token-by-token recurrences of TTT and of the Titans memory: outputs,
// states and all gradients. The kernels run on a GPU or in the CPU emulator.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/language_model.h"
#include "model/mixers/counted_budget.h"
#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/recurrence_checks.h"
#include "model/mixers/reference_rules.h"
#include "model/mixers/registry.h"
#include "model/mixers/titans/gate_products.h"
#include "model/mixers/titans/memory_tokens.h"
#include "model/mixers/titans/neural_memory.h"
#include "model/mixers/ttt_kernels.h"
#include "ops/device.h"
#include "ops/fast_weights.h"

namespace lazy {
namespace {

using testing::Tensors;

constexpr int64_t kHeads = 2, kDim = 64;

// A test case: the inputs, and two implementations that accept them (`fast` and the token-by-token recurrence
// `definition`).
struct Rule {
  Tensors inputs;
  // rounded: whether to use the kernels. begin: if not 0, the tokens are processed by two calls. The first call
  // processes the tokens before `begin`; the state after this call is the initial state of the second call.
  std::function<Tensors(const Tensors& inputs, bool rounded, int64_t begin)> fast;
  std::function<Tensors(const Tensors& inputs)> definition;
};

struct Kind {
  const char* name;
  int layers;
  bool memory, normalized;  // memory: true for the neural memory of Titans, false for TTT
  int64_t hidden = 2 * kDim;
  bool bf16 = false;  // if true, q, k and v are bf16 slices of one tensor
  int64_t chunk() const { return memory ? 64 : 16; }
};

at::Tensor normal(at::IntArrayRef shape, double std = 1) { return at::randn(shape, at::kDouble) * std; }

Tensors weights_of(const Kind& kind, double first, double last) {
  if (kind.layers == 1) return {normal({kHeads, kDim, kDim}, first)};
  return {normal({kHeads, kDim, kind.hidden}, first), normal({kHeads, kind.hidden, kDim}, last)};
}

template <typename State>
Tensors with_state(const at::Tensor& out, const State& state) {
  Tensors all = {out};
  for (const at::Tensor& t : tensors(state)) all.push_back(t);
  return all;
}

// Returns the inputs, of which the first `count` are restricted to the tokens [begin, end).
Tensors part_of(Tensors inputs, size_t count, int64_t begin, int64_t end) {
  for (size_t n = 0; n < count; ++n) inputs[n] = inputs[n].narrow(1, begin, end - begin);
  return inputs;
}

Rule ttt(const Kind& kind, int64_t batch, int64_t length, const at::Tensor& cu_seqlens) {
  const size_t layers = static_cast<size_t>(kind.layers);
  Rule rule{.inputs = {normal({batch, length, kHeads, kDim}), normal({batch, length, kHeads, kDim}),
                       normal({batch, length, kHeads, kDim}), at::rand({batch, length, kHeads}, at::kDouble) / kDim,
                       at::rand({kind.chunk()}, at::kDouble) + 0.1, 1 + normal({kHeads, kDim}, 0.2),
                       normal({kHeads, kDim}, 0.2)}};
  const Tensors W = weights_of(kind, 0.1, 0.1);
  for (const at::Tensor& w : W) rule.inputs.push_back(w);
  for (const at::Tensor& w : W) rule.inputs.push_back(normal({kHeads, 1, w.size(-1)}, 0.3));
  const auto in_of = [](const Tensors& t) { return TttInputs{t[0], t[1], t[2], t[3], t[4], t[5], t[6]}; };
  const auto start = [layers](const Tensors& t) {
    const auto W = t.begin() + 7, b = W + static_cast<std::ptrdiff_t>(layers);
    return initial_ttt_state({Tensors(W, b), Tensors(b, t.end())}, t[0].size(0));
  };
  rule.fast = [=, bf16 = kind.bf16](const Tensors& t, bool rounded, int64_t begin) {
    TttState state = start(t);
    Tensors outs;
    for (const auto& [from, to] : {std::pair{int64_t{0}, begin}, {begin, t[0].size(1)}}) {
      if (from == to) continue;
      TttInputs in = in_of(part_of(t, 4, from, to));
      in.rounded = rounded;
      if (rounded && bf16) {
        const Tensors parts = at::cat({in.q, in.k, in.v}, 2).to(at::kBFloat16).split(kHeads, 2);
        in.q = parts[0], in.k = parts[1], in.v = parts[2];
      }
      auto [out, after] = ttt_chunks(in, state, cu_seqlens);
      outs.push_back(out), state = after;
    }
    return with_state(at::cat(outs, 1), state);
  };
  rule.definition = [=](const Tensors& t) {
    const auto [out, state] = reference_ttt(in_of(t), start(t), cu_seqlens);
    return with_state(out, state);
  };
  return rule;
}

Rule memory(const Kind& kind, int64_t batch, int64_t length, const at::Tensor& cu_seqlens) {
  const auto unit = [&] {
    const at::Tensor x = normal({batch, length, kHeads, kDim});
    return x / x.norm(2, -1, /*keepdim=*/true);
  };
  // With these gates, about two thirds of the weights and of the momentum remain after a chunk, so that the initial
  // state affects the results. The momentum adds up the steps of many tokens; the step sizes are divided by this
  // amplification.
  const auto gate = [&](double bias) { return at::log_sigmoid(normal({batch, length, kHeads}) + bias); };
  // Scales the weights so that the outputs and the effect of a step do not depend on the hidden width.
  const double narrower = 2.0 * kDim / static_cast<double>(kind.hidden);
  Rule rule{.inputs = {unit(), unit(), normal({batch, length, kHeads, kDim}, kind.normalized ? 1 : 2),
                       at::sigmoid(normal({batch, length, kHeads})) * narrower * narrower / (16 * kDim), gate(5),
                       gate(5)}};
  const double last = (kind.normalized ? 0.5 : 0.2) * std::sqrt(narrower);
  for (const at::Tensor& w : weights_of(kind, kind.normalized ? 1 : 0.5, last)) rule.inputs.push_back(w);
  if (kind.normalized) rule.inputs.push_back(1 + normal({kHeads, kDim}, 0.3));
  const auto in_of = [normalized = kind.normalized](const Tensors& t) {
    return MemoryInputs{t[0], t[1], t[2], t[3], t[4], t[5], normalized ? t.back() : at::Tensor()};
  };
  const auto start = [normalized = kind.normalized](const Tensors& t) {
    return initial_memory_state(Tensors(t.begin() + 6, t.end() - (normalized ? 1 : 0)), t[0].size(0));
  };
  const int64_t chunk = kind.chunk();
  rule.fast = [=](const Tensors& t, bool rounded, int64_t begin) {
    MemoryState state = start(t);
    Tensors outs;
    for (const auto& [from, to] : {std::pair{int64_t{0}, begin}, {begin, t[0].size(1)}}) {
      if (from == to) continue;
      MemoryInputs in = in_of(part_of(t, 6, from, to));
      in.rounded = rounded;
      auto [out, after] = memory_chunks(in, state, chunk, cu_seqlens);
      outs.push_back(out), state = after;
    }
    return with_state(at::cat(outs, 1), state);
  };
  rule.definition = [=](const Tensors& t) {
    const auto [out, state] = reference_memory(in_of(t), start(t), chunk, cu_seqlens);
    return with_state(out, state);
  };
  return rule;
}

Rule rule_of(const Kind& kind, int64_t batch, int64_t length, const at::Tensor& cu_seqlens = {}) {
  at::manual_seed(length);
  return kind.memory ? memory(kind, batch, length, cu_seqlens) : ttt(kind, batch, length, cu_seqlens);
}

class FastWeightsKernels : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const Kind& kind = GetParam();
    const auto device = ops::test::test_device().type();
    const int64_t hidden = kind.layers == 2 ? kind.hidden : 0;
    if (!ops::fast_weights_kernels(device, kind.chunk(), hidden, kind.memory) &&
        (kind.memory || !ops::ttt_kernels(device, hidden))) {
      GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda); emulated_mixer_tests runs these tests on the CPU";
    }
  }
  static void expect_precision(const Rule& rule, int64_t begin) {
    testing::expect_precision([&](const Tensors& t, bool rounded) { return rule.fast(t, rounded, begin); },
                              rule.definition, rule.inputs, ops::test::test_device());
  }
};
INSTANTIATE_TEST_SUITE_P(, FastWeightsKernels,
                         ::testing::Values(Kind{"ttt_linear", 1, false, true},
                                           Kind{"ttt_linear_bf16", 1, false, true, 0, true},
                                           Kind{"ttt_mlp", 2, false, true},
                                           Kind{"ttt_mlp_in_shared_memory", 2, false, true, 4 * kDim},
                                           Kind{"ttt_mlp_bf16", 2, false, true, 4 * kDim, true},
                                           Kind{"titans_1", 1, true, false}, Kind{"titans_1_normalized", 1, true, true},
                                           Kind{"titans_2", 2, true, false}, Kind{"titans_2_normalized", 2, true, true},
                                           Kind{"titans_2_in_clusters", 2, true, false, 4 * kDim},
                                           Kind{"titans_2_normalized_in_clusters", 2, true, true, 4 * kDim}),
                         [](const auto& info) { return info.param.name; });

// The input consists of whole chunks and an incomplete chunk, and starts from a state that earlier tokens produced.
TEST_P(FastWeightsKernels, Kernels_MatchRecurrence) {
  const int64_t chunk = GetParam().chunk();
  expect_precision(rule_of(GetParam(), 1, 3 * chunk + 5), chunk);
}

TEST_P(FastWeightsKernels, WholeChunks_MatchRecurrence) {
  expect_precision(rule_of(GetParam(), 2, 2 * GetParam().chunk()), 0);
}

// Returns a number of tokens that exceeds the distance between two saved states, which is 256 tokens for TTT and 512
// for Titans.
int64_t two_spans(const Kind& kind) { return kind.memory ? 576 : 320; }

TEST_P(FastWeightsKernels, SeveralSpans_MatchRecurrence) {
  expect_precision(rule_of(GetParam(), 1, two_spans(GetParam())), 0);
}

TEST_P(FastWeightsKernels, PackedDocuments_AreIndependent) {
  const int64_t chunk = GetParam().chunk();
  // Documents whose lengths are a chunk plus three tokens, no token, one token, one chunk, and a chunk plus one token.
  const at::Tensor cu_seqlens =
      at::tensor({int64_t{0}, chunk + 3, chunk + 3, chunk + 4, 2 * chunk + 4, 3 * chunk + 5}, at::kInt);
  expect_precision(rule_of(GetParam(), 1, 3 * chunk + 5, cu_seqlens), 0);
}

TEST_P(FastWeightsKernels, Results_AreBitwiseReproducible) {
  const Rule rule = rule_of(GetParam(), 1, 2 * GetParam().chunk());
  Tensors inputs;
  for (const at::Tensor& x : rule.inputs) inputs.push_back(x.to(at::kFloat).to(ops::test::test_device()));
  const auto all = [&](bool rounded) {
    const auto fast = [&](const Tensors& t) { return rule.fast(t, rounded, 0); };
    Tensors out = fast(inputs);
    for (const at::Tensor& gradient : testing::gradients_of(fast, inputs)) out.push_back(gradient);
    return out;
  };
  const Tensors once = all(true), again = all(true), batched = all(false);
  for (size_t n = 0; n < once.size(); ++n) EXPECT_TRUE(at::equal(once[n], again[n])) << n;
  // The results must differ slightly from the results without kernels, which use batched matrix products. If they were
  // bitwise equal, the kernels would not have been used.
  EXPECT_FALSE(at::equal(once.front(), batched.front()) || at::equal(once.back(), batched.back()));
}

// A span is the sequence of tokens between two saved states. The budget allows the program to keep the activations of
// no span, of one span, or of all spans; the activations of the remaining spans are recomputed in the backward pass.
TEST_P(FastWeightsKernels, KeptActivations_GiveBitwiseEqualResults) {
  const Rule rule = rule_of(GetParam(), 1, two_spans(GetParam()));
  // TTT's kernels divide the sequence into spans themselves. With one layer, they always save everything that the
  // backward pass needs.
  const bool in_parts = !GetParam().memory && ops::ttt_kernels(ops::test::test_device().type(),
                                                               GetParam().layers == 2 ? GetParam().hidden : 0);
  testing::CountedBudget counted;
  Tensors recomputed;
  for (const int64_t room : {0, 1, 7 << 20}) {
    counted.memory.free = room;
    Tensors out, inputs;
    for (const at::Tensor& x : rule.inputs) inputs.push_back(x.to(at::kFloat).to(ops::test::test_device()));
    const Tensors gradients = testing::gradients_of(
        [&](const Tensors& t) {
          const ActivationBudget::ForwardPass pass(counted.budget);
          return out = rule.fast(t, /*rounded=*/true, 0);
        },
        inputs);
    const bool keeps = in_parts ? room > 1 && GetParam().layers == 2 : room > 0;
    EXPECT_EQ(counted.budget.take(room), !keeps) << room;
    counted.budget.end_step();
    out.insert(out.end(), gradients.begin(), gradients.end());
    if (room == 0) recomputed = out;
    for (size_t n = 0; n < out.size(); ++n) EXPECT_TRUE(at::equal(out[n], recomputed[n])) << room << " " << n;
  }
}

// The kernels with clusters save 16-bit values for the backward pass. These replace the fp32 tensors of each chunk: the
// weights W, the momentum S, and the three activations z, t and x of the hidden layer.
TEST(MemoryKernels, KeptBytes_AreHalfOfChunk) {
  constexpr int64_t kTokens = 64, kHidden = 4 * kDim;
  const auto* const kernels =
      ops::fast_weights_kernels(ops::test::test_device().type(), kTokens, kHidden, /*momentum=*/true);
  if (!kernels)
    GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda); emulated_mixer_tests runs this test on the CPU";
  const auto kept = [&](int64_t H, bool tanh) {
    return kernels->kept_bytes({.T = kTokens, .H = H, .momentum = true, .tanh = tanh});
  };
  const int64_t computed = (4 * kDim + 3 * kTokens) * kHidden * static_cast<int64_t>(sizeof(float));
  EXPECT_LT(kept(kHidden, false), computed * 55 / 100);  // the cases below use other kernels, which save no such data
  EXPECT_EQ(kept(kHidden, true), 0);
  EXPECT_EQ(kept(kHidden / 2, false), 0);
  EXPECT_EQ(kept(0, false), 0);
}

// The kernels scale gradients internally. Small gradients (for example of a mean loss over many tokens) must therefore
// give bitwise the same results as large ones.
TEST(MemoryKernels, ScaledGradients_AreBitwiseEqual) {
  const at::Device device = ops::test::test_device();
  const Kind kind{"", 2, true, true, 4 * kDim};
  if (!ops::fast_weights_kernels(device.type(), kind.chunk(), kind.hidden, kind.memory)) {
    GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda); emulated_mixer_tests runs this test on the CPU";
  }
  const Rule rule = rule_of(kind, 1, kind.chunk());
  Tensors inputs;
  for (const at::Tensor& x : rule.inputs) inputs.push_back(x.to(at::kFloat).to(device));
  const auto gradients = [&](double scale) {
    return testing::gradients_of(
        [&](const Tensors& t) {
          Tensors out = rule.fast(t, true, 0);
          for (at::Tensor& x : out) x = x * scale;
          return out;
        },
        inputs);
  };
  const double small = std::ldexp(1.0, -40);
  const Tensors one = gradients(1), other = gradients(small);
  for (size_t n = 0; n < one.size(); ++n) EXPECT_TRUE(at::equal(one[n], other[n] / small)) << n;
}

// A test case with tokens, weights or gradients that occur in training and are far above or far below the range of
// fp16.
struct Range {
  const char* name;
  std::function<void(Tensors& inputs)> change{};
  // Changes the factors by which the test multiplies the outputs, and thus the gradients of the outputs. Shape (batch,
  // tokens, 1, 1).
  std::function<void(at::Tensor& factors)> scale{};
  bool normalized = true;
  int64_t batch = 1, length = 2 * 64;
  std::vector<int64_t> begins{};  // offsets of the documents, followed by the number of tokens
  friend void PrintTo(const Range& range, std::ostream* to) { *to << range.name; }
};
enum : size_t { kKeys = 1, kValues = 2, kSteps = 3, kMomentum = 4, kKeep = 5, kFirst = 6, kLast = 7 };
void multiply(at::Tensor& x, double by) { x = x * by; }
at::Tensor gates(const at::Tensor& like, double from, double to) {
  return at::linspace(from, to, like.numel(), like.options()).view_as(like).log();
}

class MemoryRanges : public ::testing::TestWithParam<Range> {};
INSTANTIATE_TEST_SUITE_P(
    , MemoryRanges,
    ::testing::Values(
        // This range is difficult because the memory applies LayerNorm to its outputs, which are about 1e-3 here.
        // LayerNorm divides by their standard deviation, and its second derivative divides by the square of the
        // standard deviation.
        Range{"outputs_near_zero", [](Tensors& x) { multiply(x[kLast], 1e-3), multiply(x[kSteps], 1e-6); }},
        Range{"keys_near_zero", [](Tensors& x) { multiply(x[kKeys], 1e-4), multiply(x[kSteps], 100); }},
        Range{"large_values",
              [](Tensors& x) { multiply(x[kValues], 3e3), multiply(x[kLast], 1e-2), multiply(x[kSteps], 1e-9); }},
        Range{"large_weights_in_the_first_layer", [](Tensors& x) { multiply(x[kFirst], 100); }},
        Range{"large_weights_in_both_layers_without_norm",
              [](Tensors& x) { multiply(x[kFirst], 30), multiply(x[kLast], 30); },
              {},
              false},
        Range{"short_memory",
              [](Tensors& x) { x[kKeep] = gates(x[kKeep], 0.5, 1e-6), x[kMomentum] = gates(x[kMomentum], 1e-6, 0.5); }},
        Range{"long_memory",
              [](Tensors& x) {
                x[kKeep] = gates(x[kKeep], 0.999, 1), x[kMomentum] = gates(x[kMomentum], 0.999, 1);
                multiply(x[kSteps], 0.05);
              }},
        Range{"tiny_steps", [](Tensors& x) { multiply(x[kSteps], 1e-6); }},
        Range{"one_dominant_gradient", {}, [](at::Tensor& f) { f.select(1, 70).mul_(1e6); }},
        Range{"tiny_gradients", {}, [](at::Tensor& f) { f.mul_(1e-9); }},
        Range{"large_gradients", {}, [](at::Tensor& f) { f.mul_(1e3); }},
        Range{"texts_without_gradients", {}, [](at::Tensor& f) { f.select(0, 1).zero_(); }, true, 2},
        Range{"large_gradients_only_at_the_end", {}, [](at::Tensor& f) { f.narrow(1, 0, 100).mul_(1e-12); }},
        Range{"documents",
              {},
              [](at::Tensor& f) { f.narrow(1, 1, 65).zero_(); },
              true,
              1,
              332,
              {0, 1, 66, 130, 132, 332}}),
    [](const auto& info) { return info.param.name; });

TEST_P(MemoryRanges, Kernels_MatchRecurrence) {
  const Range& range = GetParam();
  const Kind kind{"", 2, true, range.normalized, 4 * kDim};
  if (!ops::fast_weights_kernels(ops::test::test_device().type(), kind.chunk(), kind.hidden, kind.memory)) {
    GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda); emulated_mixer_tests runs these tests on the CPU";
  }
  Rule rule = rule_of(kind, range.batch, range.length,
                      range.begins.empty() ? at::Tensor() : at::tensor(range.begins, at::kInt));
  if (range.change) range.change(rule.inputs);
  at::Tensor factors = at::ones({range.batch, range.length, 1, 1}, at::kDouble);
  if (range.scale) range.scale(factors);
  // The loss contains only the outputs. It does not contain the last state, whose gradient could not be scaled by
  // `factors`.
  const auto scaled = [&](const Tensors& out) {
    return Tensors{out[0] * factors.to(out[0].options().requires_grad(false))};
  };
  testing::expect_precision([&](const Tensors& t, bool rounded) { return scaled(rule.fast(t, rounded, 0)); },
                            [&](const Tensors& t) { return scaled(rule.definition(t)); }, rule.inputs,
                            ops::test::test_device());
}

// Compares the gradients of a model in bf16 with its gradients in fp32, for sequences that consist of whole
// mini-batches and for sequences with an incomplete mini-batch at the end.
TEST(TttModel, Bf16Gradients_MatchFp32) {
  const at::Device device = ops::test::test_device();
  for (const char* mixer : {"ttt_linear", "ttt_mlp"}) {
    ModelConfig config{.vocab_size = 61,
                       .hidden_size = 4 * kDim,
                       .num_layers = 1,
                       .max_length = 64,
                       .attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = kDim},
                       .mlp = {.intermediate_size = 48}};
    config.mixer = {.type = *kMixerTypes.find(mixer), .heads = 4};
    mixer_kind(config).infer_sizes(config);
    if (!ops::ttt_kernels(device.type(), config.mixer.type == MixerType::ttt_mlp ? 4 * kDim : 0)) {
      GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda), or the emulator in emulated_mixer_tests";
    }
    for (const int64_t length : {48, 41}) {
      LanguageModel model(config, 3);
      model.to(device);
      const at::Tensor ids =
          at::randint(61, {2, length + 1}, at::detail::createCPUGenerator(length), at::kLong).to(device);
      const auto gradients = [&](at::ScalarType type) {
        model.set_compute_dtype(type);
        model.loss(ids.narrow(1, 0, length), ids.narrow(1, 1, length)).backward();
        Tensors all;
        for (auto& [name, p] : model.parameters()) {
          all.push_back(p.grad().to(at::kDouble));
          p.mutable_grad() = at::Tensor();
        }
        return all;
      };
      const Tensors wide = gradients(at::kFloat), narrow = gradients(at::kBFloat16);
      for (size_t n = 0; n < wide.size(); ++n) {
        EXPECT_LE((narrow[n] - wide[n]).norm().item<double>(), 0.05 * wide[n].norm().item<double>())
            << mixer << " " << length << " " << model.parameters()[n].first;
      }
    }
  }
}

// The distance of our bf16 outputs and gradients from float64 must be at most twice the distance of PyTorch's
// layer_norm in fp32, whose results are rounded to bf16.
TEST(TttPostNorm, Bf16_MatchesLayerNorm) {
  for (const int64_t dim : {256, 512, 1024}) {
    if (!ops::ttt_norm_kernels(ops::test::test_device().type(), dim))
      GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda), or the emulator in emulated_mixer_tests";
    at::manual_seed(dim);
    const Tensors inputs = {normal({3, 50, dim}, 2) + 1, 1 + normal({dim}, 0.2), normal({dim}, 0.2)};
    const auto by = [&](const auto& norm, at::ScalarType type) {
      Tensors leaves;
      for (const at::Tensor& x : inputs) leaves.push_back(x.to(ops::test::test_device(), type));
      Tensors all = {norm(leaves)};
      const auto outputs = [&](const Tensors& t) { return Tensors{norm(t)}; };
      for (const at::Tensor& gradient : testing::gradients_of(outputs, leaves)) all.push_back(gradient);
      return all;
    };
    const auto kernels = [](const Tensors& t) {
      return ttt_post_norm(t[0].to(at::kBFloat16), t[1], t[2], at::kBFloat16).to(at::kFloat);
    };
    const auto composed = [&](const Tensors& t) {
      const at::Tensor x = t[0].to(at::kBFloat16).to(at::kFloat);
      return at::layer_norm(x, {dim}, t[1], t[2], kTttNormEps).to(at::kBFloat16).to(at::kFloat);
    };
    const auto definition = [](const Tensors& t) {
      const at::Tensor centered = t[0] - t[0].mean(-1, true);
      return centered / (centered.square().mean(-1, true) + kTttNormEps).sqrt() * t[1] + t[2];
    };
    const Tensors got = by(kernels, at::kFloat), again = by(kernels, at::kFloat), reference = by(composed, at::kFloat),
                  exact = by(definition, at::kDouble);
    for (size_t n = 0; n < got.size(); ++n) {
      const auto error = [&](const at::Tensor& x) { return (x.to(at::kDouble) - exact[n]).norm().item<double>(); };
      EXPECT_LE(error(got[n]), 2 * error(reference[n])) << dim << " " << n;
      EXPECT_TRUE(at::equal(got[n], again[n])) << dim << " " << n;
    }
  }
}

// The kernel computes products of the memory's gates over the tokens of a chunk. Its results and gradients must match
// the other implementation, which adds the logarithms of the gates.
TEST(GateProducts, Kernel_MatchesSumsOfLogarithms) {
  constexpr int64_t kChunk = 64;
  const at::Device device = ops::test::test_device();
  if (!ops::fast_weights_kernels(device.type(), kChunk, 0, true))
    GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  at::manual_seed(1);
  const auto gate = [](double bias) { return at::log_sigmoid(normal({3, kHeads, kChunk}) + bias); };
  const Tensors inputs = {at::rand({3, kHeads, kChunk}, at::kDouble), gate(1), gate(3)};
  const auto products = [](bool rounded) {
    return [rounded](const Tensors& t) {
      const GateProducts c = gate_products(t[0], t[1], t[2], rounded);
      return Tensors{c.read_steps,     c.read_keep, c.read_carry, c.steps,
                     c.momentum_steps, c.keep,      c.carry,      c.momentum_keep};
    };
  };
  Tensors on_device;
  for (const at::Tensor& x : inputs) on_device.push_back(x.to(at::kFloat).to(device));
  const auto all = [](const auto& form, const Tensors& in) {
    Tensors out = form(in);
    for (const at::Tensor& d : testing::gradients_of(form, in)) out.push_back(d);
    return out;
  };
  const Tensors exact = all(products(false), inputs), fast = all(products(true), on_device),
                again = all(products(true), on_device);
  for (size_t n = 0; n < exact.size(); ++n) {
    const double error = (fast[n].cpu().to(at::kDouble) - exact[n]).abs().max().item<double>();
    EXPECT_LT(error, 1e-5 * exact[n].abs().max().item<double>()) << n;
    EXPECT_TRUE(at::equal(fast[n], again[n])) << n;
  }
}

// Tests the conversion of tokens to the memory layout of the Titans kernels (chunks, sequences, heads, tokens of a
// chunk) and back. The tokens are slices of wider rows.
TEST(MemoryTokens, Kernels_MatchPyTorch) {
  const at::Device device = ops::test::test_device();
  if (!ops::fast_weights_kernels(device.type(), 64, 0, true)) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  constexpr int64_t kBatch = 3, kChunks = 2, kT = 5;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const bool residual : {false, true}) {
      const int64_t tokens = kChunks * kT - (residual ? 3 : 0);
      at::manual_seed(1);
      const Tensors inputs = {normal({kBatch, tokens, 3, kHeads, kDim}).to(type).to(at::kDouble),
                              normal({kChunks, kBatch * kHeads, kT, kDim}, 2), 1 + normal({kHeads, kDim}, 0.3)};
      const auto streams = [](const at::Tensor& x) { return x.permute({2, 0, 3, 1, 4}).unbind(0); };
      const auto kernels = [&](const Tensors& t) {
        const auto stream = streams(t[0].to(type));
        const auto in = memory_tokens(stream[0], stream[1], stream[2], kChunks, kT, /*raw=*/true, residual, true);
        return Tensors{in.q, in.k, in.target, memory_outputs(t[1], in.q, t[2], kBatch, tokens, at::kFloat, true)};
      };
      const auto definition = [&](const Tensors& t) {
        const auto unit = [](const at::Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); };
        const auto in_chunks = [](const at::Tensor& x) {
          return fast_weights::to_chunks(pad_tokens(x, kChunks * kT), kChunks);
        };
        const auto stream = streams(t[0]);
        const at::Tensor q = in_chunks(unit(stream[0])), k = in_chunks(unit(stream[1])), v = in_chunks(stream[2]);
        const at::Tensor centered = t[1] - t[1].mean(-1, true),
                         normalized = centered / (centered.square().mean(-1, true) + kInnerNormEps).sqrt();
        const at::Tensor out = q + normalized * fast_weights::for_all(t[2].unsqueeze(1), kBatch);
        return Tensors{q, k, residual ? v - k : v, fast_weights::from_chunks(out, kBatch).narrow(2, 0, tokens)};
      };
      const auto all = [](const auto& f, const Tensors& in) {
        Tensors out = f(in);
        for (const at::Tensor& d : testing::gradients_of(f, in)) out.push_back(d);
        return out;
      };
      Tensors on_device;
      for (const at::Tensor& x : inputs) on_device.push_back(x.to(at::kFloat).to(device));
      const Tensors exact = all(definition, inputs), fast = all(kernels, on_device), again = all(kernels, on_device);
      for (size_t n = 0; n < exact.size(); ++n) {
        // In bf16, result 4 (the gradient of the tokens) is rounded to bf16.
        const double relative = n == 4 && type == at::kBFloat16 ? 1.0 / 256 : 1e-6;
        const at::Tensor error = (fast[n].cpu().to(at::kDouble) - exact[n]).abs();
        const at::Tensor allowed = exact[n].abs() * relative + exact[n].abs().max() * 3e-6;
        EXPECT_TRUE(error.le(allowed).all().item<bool>()) << type << " " << residual << " " << n;
        EXPECT_TRUE(at::equal(fast[n], again[n])) << type << " " << residual << " " << n;
      }
    }
  }
}

// Outputs in bf16, and the gradients that are computed from bf16 gradients of the outputs, must equal the fp32 results
// rounded to bf16. The tensor of output gradients is a slice of a tensor with more tokens.
TEST(MemoryTokens, SixteenBitOutputs_AreRoundedFp32) {
  const at::Device device = ops::test::test_device();
  if (!ops::fast_weights_kernels(device.type(), 64, 0, true)) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  constexpr int64_t kBatch = 3, kChunks = 2, kT = 5, kTokens = 8;
  at::manual_seed(1);
  const auto leaf = [&](at::IntArrayRef sizes) { return normal(sizes).to(at::kFloat).to(device).requires_grad_(); };
  const Tensors leaves = {leaf({kChunks, kBatch * kHeads, kT, kDim}), leaf({kChunks, kBatch * kHeads, kT, kDim}),
                          leaf({kHeads, kDim})};
  const at::Tensor d = normal({kBatch, kTokens + 3, kHeads, kDim}).to(at::kBFloat16).to(device);
  const auto all = [&](at::ScalarType type) {
    const at::Tensor out = memory_outputs(leaves[0], leaves[1], leaves[2], kBatch, kTokens, type, true);
    EXPECT_EQ(out.scalar_type(), type);
    Tensors results = {out.detach()};
    for (const at::Tensor& x : torch::autograd::grad({out}, leaves, {d.to(type).narrow(1, 2, kTokens).transpose(1, 2)}))
      results.push_back(x);
    return results;
  };
  const Tensors narrow = all(at::kBFloat16), wide = all(at::kFloat);
  for (size_t n = 0; n < wide.size(); ++n) {
    EXPECT_TRUE(at::equal(narrow[n], wide[n].to(narrow[n].scalar_type()))) << n;
    EXPECT_GT(wide[n].abs().max().item<double>(), 0.1);
  }
}

// Raw tokens (as the projections compute them, with any vector length) must give the same results as tokens that were
// normalized before the call. Covers whole chunks, an incomplete chunk and packed documents.
TEST(MemoryTokens, RawTokens_MatchNormalizedTokens) {
  const at::Device device = ops::test::test_device();
  if (!ops::fast_weights_kernels(device.type(), 64, 0, true)) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  constexpr int64_t kLength = 2 * 64 + 5;
  const Kind kind{.name = "", .layers = 1, .memory = true, .normalized = true};
  Tensors inputs;
  for (const at::Tensor& x : rule_of(kind, 1, kLength).inputs) inputs.push_back(x.to(at::kFloat).to(device));
  for (size_t n = 0; n < 2; ++n) inputs[n] = 3 * inputs[n];
  for (const at::Tensor& cu_seqlens : {at::Tensor(), at::tensor({int64_t{0}, int64_t{70}, kLength}, at::kInt)}) {
    const auto form = [&](bool raw) {
      return [=](const Tensors& t) {
        Tensors x;
        for (size_t n = 0; n < 3; ++n) {
          const at::Tensor given = t[n].to(at::kBFloat16);
          x.push_back(raw ? given : n == 2 ? given.to(at::kFloat) : unit_length(given));
        }
        const MemoryInputs in{.q = x[0],
                              .k = x[1],
                              .v = x[2],
                              .step = t[3],
                              .log_momentum = t[4],
                              .log_keep = t[5],
                              .norm = t[7],
                              .rounded = true,
                              .raw = raw};
        return Tensors{std::get<0>(memory_chunks(in, initial_memory_state({t[6]}, 1), 64, cu_seqlens))};
      };
    };
    // The results are not bitwise equal, because the two paths compute sums in different orders.
    EXPECT_FALSE(at::equal(form(true)(inputs)[0], form(false)(inputs)[0]));
    // With raw tokens, the outputs are also in bf16.
    const auto wide = [&](const at::Tensor& x) { return x.to(at::kFloat); };
    testing::expect_close({wide(form(true)(inputs)[0])}, form(false)(inputs), 1.0 / 128, "outputs");
    testing::expect_close(testing::gradients_of(form(true), inputs), testing::gradients_of(form(false), inputs), 1e-2,
                          "gradients");
  }
}

}  // namespace
}  // namespace lazy
