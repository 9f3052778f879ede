// Tests of the Titans neural memory: the chunkwise parallel form against the token-by-token recurrence.
#include "model/mixers/titans/neural_memory.h"

#include <algorithm>

#include "model/mixers/recurrence_checks.h"
#include "model/mixers/reference_rules.h"
#include "model/mixers/titans/memory_branch.h"
#include "ops/device.h"

namespace lazy {
namespace {

using testing::expect_close;
using testing::expect_gradients;
using testing::gradients_of;
using testing::Tensors;

struct Case {
  MemoryInputs in;
  MemoryWeights weights;
};

struct Memory {
  int depth;
  bool normalized;
};

Case random_case(Memory memory, int64_t batch, int64_t length, int64_t heads, int64_t dim) {
  at::manual_seed(length * 7 + dim);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto normal = [&](at::IntArrayRef shape, double std = 1) { return at::randn(shape, options) * std; };
  const auto unit = [&] {
    const at::Tensor x = normal({batch, length, heads, dim});
    return x / x.norm(2, -1, /*keepdim=*/true);
  };
  const auto gate = [&](double bias) { return at::log_sigmoid(normal({batch, length, heads}) + bias); };
  // A LayerNorm divides by the standard deviation of its input, so a normalized memory whose weights have decayed
  // amplifies rounding errors. In this test about 99 % of the weights remain per token, as in models at the start of
  // training.
  Case c{.in = {.q = unit(),
                .k = unit(),
                .v = normal({batch, length, heads, dim}),
                .step = 0.05 * at::sigmoid(normal({batch, length, heads})),
                .log_momentum = gate(0),
                .log_keep = gate(memory.normalized ? 4.6 : 2)}};
  for (int n = 0; n < memory.depth; ++n) {
    // Normalized memories have larger weights, because the LayerNorm of a vector near zero amplifies rounding errors.
    c.weights.push_back(
        normal({heads, n == 0 ? dim : 2 * dim, n + 1 == memory.depth ? dim : 2 * dim}, memory.normalized ? 1 : 0.5));
  }
  if (memory.normalized) c.in.norm = 1 + normal({heads, dim}, 0.3);
  return c;
}

Tensors flat(const Case& c) {
  Tensors out = {c.in.q, c.in.k, c.in.v, c.in.step, c.in.log_momentum, c.in.log_keep};
  out.insert(out.end(), c.weights.begin(), c.weights.end());
  if (c.in.norm.defined()) out.push_back(c.in.norm);
  return out;
}

// Inverse of flat(). `like` is the case whose tensors were flattened: t contains the weight of a norm if `like` has
// one.
Case unflat(const Tensors& t, const Case& like) {
  const auto weights = t.begin() + 6, norm = weights + static_cast<std::ptrdiff_t>(like.weights.size());
  return {.in = {t[0], t[1], t[2], t[3], t[4], t[5], norm == t.end() ? at::Tensor() : *norm},
          .weights = MemoryWeights(weights, norm)};
}

Tensors tensors_of(const at::Tensor& out, const MemoryState& s) {
  Tensors all = {out};
  for (const auto* list : {&s.weights, &s.momentum, &s.base}) all.insert(all.end(), list->begin(), list->end());
  return all;
}

template <typename Form>
Tensors run(const Form& form, const Case& c, int64_t chunk, const at::Tensor& cu_seqlens = {}) {
  const auto [out, state] = form(c.in, initial_memory_state(c.weights, c.in.q.size(0)), chunk, cu_seqlens);
  return tensors_of(out, state);
}

Case tokens(const Case& c, int64_t begin, int64_t length) {
  Case part = c;
  for (at::Tensor* x : {&part.in.q, &part.in.k, &part.in.v, &part.in.step, &part.in.log_momentum, &part.in.log_keep}) {
    *x = x->narrow(1, begin, length);
  }
  return part;
}

class NeuralMemory : public ::testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(, NeuralMemory,
                         ::testing::Values(Memory{1, false}, Memory{2, false}, Memory{3, false}, Memory{1, true},
                                           Memory{2, true}, Memory{3, true}),
                         [](const auto& info) {
                           return "depth" + std::to_string(info.param.depth) +
                                  (info.param.normalized ? "normalized" : "");
                         });

TEST_P(NeuralMemory, ChunkwiseForm_MatchesReference) {
  for (const int64_t length : {1, 5, 8, 9, 31}) {
    for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{1, 6}, {3, 4}}) {
      const Case c = random_case(GetParam(), 2, length, heads, dim);
      expect_close(run(memory_chunks, c, 8), run(reference_memory, c, 8), 1e-10,
                   ("length " + std::to_string(length)).c_str());
    }
  }
}

// Compares a linear memory that has a single weight with a computation by hand.
TEST(NeuralMemoryByHand, ScalarMemory_MatchesHandComputation) {
  const Case c = random_case({1, false}, 1, 5, 1, 1);
  const auto number = [](const at::Tensor& x, int64_t t) { return x.reshape({-1})[t].item<double>(); };
  const auto [out, state] = memory_chunks(c.in, initial_memory_state(c.weights, 1), 2);
  double M = number(c.weights[0], 0), S = 0, base = M;
  for (int64_t t = 0; t < 5; ++t) {
    if (t % 2 == 0) base = M;
    const double k = number(c.in.k, t);
    // The gradient of the loss is bounded: an error longer than 1 counts as an error of length 1.
    const double error = std::clamp(base * k - number(c.in.v, t), -1., 1.);
    S = std::exp(number(c.in.log_momentum, t)) * S - number(c.in.step, t) * 2 * error * k;
    M = std::exp(number(c.in.log_keep, t)) * M + S;
    EXPECT_NEAR(number(out, t), M * number(c.in.q, t), 1e-12) << "token " << t;
  }
}

// Compares a normalized linear memory with two dimensions with a computation by hand. Up to its epsilon, LayerNorm of
// two numbers is the sign of their difference.
TEST(NeuralMemoryByHand, Norm_IsResidual) {
  const Case c = random_case({1, true}, 1, 1, 1, 2);
  const auto number = [](const at::Tensor& x, int64_t n) { return x.reshape({-1})[n].item<double>(); };
  const auto z_of = [&](const at::Tensor& W, const at::Tensor& x, int64_t n) {
    return number(x, 0) * number(W, n) + number(x, 1) * number(W, 2 + n);
  };
  const at::Tensor out = recall({c.weights[0].unsqueeze(0)}, c.in.norm, c.in.q, at::kDouble);
  const double half = (z_of(c.weights[0], c.in.q, 0) - z_of(c.weights[0], c.in.q, 1)) / 2;
  for (const int64_t n : {0, 1}) {
    const double normalized = (n == 0 ? half : -half) / std::sqrt(half * half + 1e-6);
    EXPECT_NEAR(number(out, n), number(c.in.q, n) + normalized * number(c.in.norm, n), 1e-12);
  }
}

TEST(MemoryGates, Gates_MatchSigmoidsAndLogarithms) {
  constexpr int64_t kHeads = 2;
  at::manual_seed(3);
  const at::Tensor logits = (12 * at::randn({3, 5, 3 * kHeads})).to(at::kBFloat16), bias = at::randn({3 * kHeads});
  const auto list = [](const MemoryGates& gates) { return Tensors{gates.step, gates.log_momentum, gates.log_keep}; };
  const auto ours = [&](const Tensors& t) { return list(memory_gates(t[0], t[1], 64, 16)); };
  const auto definition = [](const Tensors& t) {
    const Tensors parts = (t[0] + t[1]).chunk(3, -1);
    return Tensors{parts[0].sigmoid() * (-parts[1]).sigmoid() / 64, at::log_sigmoid(parts[1]),
                   at::log_sigmoid(-parts[2])};
  };
  const Tensors exact = {logits.to(at::kDouble), bias.to(at::kDouble)};
  const Tensors gates = ours({logits, bias}), want = definition(exact);
  for (size_t n = 0; n < gates.size(); ++n) {
    EXPECT_EQ(gates[n].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(gates[n].to(at::kDouble), want[n], 3e-6, 1e-30)) << n;
  }
  const Tensors in_fp32 = {logits.to(at::kFloat), bias};
  expect_close(gradients_of(ours, in_fp32), gradients_of(definition, exact), 1e-6, "gradient");
  const Tensors rounded = gradients_of(ours, {logits, bias}), whole = gradients_of(ours, in_fp32);
  EXPECT_TRUE(at::equal(rounded[0], whole[0].to(at::kBFloat16)) && at::equal(rounded[1], whole[1]));
}

TEST_P(NeuralMemory, GradientsThroughInnerSteps_MatchReference) {
  const Case c = random_case(GetParam(), 2, 11, 2, GetParam().normalized ? 6 : 3);
  const auto chunks = [&](const Tensors& t) { return run(memory_chunks, unflat(t, c), 4); };
  const auto loop = [&](const Tensors& t) { return run(reference_memory, unflat(t, c), 4); };
  expect_gradients(chunks, flat(c));
  expect_close(gradients_of(chunks, flat(c)), gradients_of(loop, flat(c)), 1e-9, "gradient");
}

// The sequence is longer than the number of tokens between two saved states, and it consists of packed documents.
TEST_P(NeuralMemory, GradientsAcrossCheckpoints_MatchReference) {
  const Case c = random_case(GetParam(), 1, 275, 1, GetParam().normalized ? 6 : 2);
  const at::Tensor cu_seqlens = at::tensor({0, 7, 275}, at::kInt);
  const auto chunks = [&](const Tensors& t) { return run(memory_chunks, unflat(t, c), 32, cu_seqlens); };
  const auto loop = [&](const Tensors& t) { return run(reference_memory, unflat(t, c), 32, cu_seqlens); };
  expect_close(chunks(flat(c)), loop(flat(c)), 1e-9, "result");
  expect_close(gradients_of(chunks, flat(c)), gradients_of(loop, flat(c)), 1e-8, "gradient");
}

// Outputs and gradients must not depend on whether the last state is computed. Covers sequences that end within a
// chunk, at the end of a chunk, and after several saved states.
TEST_P(NeuralMemory, LastState_IsOptional) {
  for (const int64_t length : {3, 8, 11, 16, 275}) {
    const Case c = random_case(GetParam(), 1, length, 2, GetParam().normalized ? 6 : 3);
    const auto answers = [&](bool last_state) {
      return [&, last_state](const Tensors& t) {
        Case given = unflat(t, c);
        given.in.last_state = last_state;
        return Tensors{run(memory_chunks, given, 8)[0]};
      };
    };
    const std::string what = "length " + std::to_string(length);
    expect_close(answers(false)(flat(c)), answers(true)(flat(c)), 1e-14, what.c_str());
    expect_close(gradients_of(answers(false), flat(c)), gradients_of(answers(true), flat(c)), 1e-12, what.c_str());
  }
}

TEST_P(NeuralMemory, State_Continues) {
  const Case c = random_case(GetParam(), 2, 29, 2, 4);
  const Tensors whole = run(memory_chunks, c, 8);
  for (const int64_t prefill : {0, 3, 8, 21}) {
    MemoryState state = initial_memory_state(c.weights, 2);
    std::vector<at::Tensor> out;
    if (prefill > 0) {
      auto [first, next] = memory_chunks(tokens(c, 0, prefill).in, state, 8);
      out.push_back(first), state = next;
    }
    for (int64_t t = prefill; t < 29; ++t) {
      auto [y, next] = memory_chunks(tokens(c, t, 1).in, state, 8);
      out.push_back(y), state = next;
    }
    expect_close(tensors_of(at::cat(out, 1), state), whole, 1e-11, "prefill and steps");
  }
  auto [first, state] = reference_memory(tokens(c, 0, 13).in, initial_memory_state(c.weights, 2), 8);
  auto [second, last] = reference_memory(tokens(c, 13, 16).in, state, 8);
  expect_close(tensors_of(at::cat({first, second}, 1), last), whole, 1e-11, "the reference, computed in two parts");
}

TEST_P(NeuralMemory, PackedDocuments_AreIndependent) {
  const Case c = random_case(GetParam(), 1, 40, 2, 4);
  const at::Tensor cu_seqlens = at::tensor({0, 13, 13, 40}, at::kInt);
  for (const auto& form : {memory_chunks, reference_memory}) {
    const at::Tensor together = run(form, c, 8, cu_seqlens)[0];
    expect_close({together}, {at::cat({run(form, tokens(c, 0, 13), 8)[0], run(form, tokens(c, 13, 27), 8)[0]}, 1)},
                 1e-12, "packed");
  }
}

// Gates that are exactly zero must give finite outputs and gradients.
TEST_P(NeuralMemory, ClosedGates_StayFinite) {
  Case c = random_case(GetParam(), 1, 20, 2, GetParam().normalized ? 8 : 4);
  c.in.log_keep = at::full_like(c.in.log_keep, -400);
  c.in.log_momentum = at::full_like(c.in.log_momentum, -400);
  // Uses small steps, for which LayerNorm's epsilon dominates. With closed gates, the weights consist only of the last
  // token's step, which has rank one. With large steps, the gradient with respect to the last layer's output would be
  // orthogonal to that layer's weights, and the first layer's gradient would consist of rounding errors.
  if (GetParam().normalized) c.in.step = 0.03 * c.in.step;
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    Tensors inputs;
    for (const at::Tensor& x : flat(c)) inputs.push_back(x.to(dtype));
    const auto chunks = [&](const Tensors& t) { return run(memory_chunks, unflat(t, c), 8); };
    expect_close(chunks(inputs), run(reference_memory, unflat(inputs, c), 8), 1e-5, "shut gates");
    for (const at::Tensor& gradient : gradients_of(chunks, inputs)) EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  }
}

// The same key is repeated, with the step size that models use. With a plain squared error, whose gradient is
// unbounded, the memory would diverge here.
TEST_P(NeuralMemory, RepeatedKeys_StayFinite) {
  Case c = random_case(GetParam(), 1, 320, 2, 8);
  c.in.k = c.in.k.narrow(1, 0, 1).expand_as(c.in.k);
  c.in.v = 10 * c.in.v;
  c.in.step = at::full_like(c.in.step, 1. / 16);
  for (const auto& form : {memory_chunks, reference_memory}) {
    const at::Tensor out = run(form, c, 16)[0];
    EXPECT_LT(out.abs().max().item<double>(), 1e30);
  }
  const auto chunks = [&](const Tensors& t) { return run(memory_chunks, unflat(t, c), 16); };
  for (const at::Tensor& gradient : gradients_of(chunks, flat(c))) EXPECT_TRUE(gradient.isfinite().all().item<bool>());
}

TEST_P(NeuralMemory, SinglePrecision_IsCloseToDouble) {
  const Case c = random_case(GetParam(), 2, 55, 2, 8);
  Tensors single;
  for (const at::Tensor& x : flat(c)) single.push_back(x.to(at::kFloat));
  const at::Tensor exact = run(memory_chunks, c, 16)[0];
  const auto error = [&](const Tensors& t) { return testing::largest_difference(t[0].to(at::kDouble), exact); };
  const double chunks = error(run(memory_chunks, unflat(single, c), 16)),
               loop = error(run(reference_memory, unflat(single, c), 16));
  EXPECT_LE(chunks, 3 * loop + 1e-6) << "the error of the reference in fp32 is " << loop;
  EXPECT_LT(chunks, 1e-3 * exact.abs().max().item<double>());
}

TEST_P(NeuralMemory, Precision_IsBoundedOnTestDevice) {
  const Case c = random_case(GetParam(), 2, 64, 2, 8);
  const auto chunks = [&](const Tensors& t, bool rounded) {
    Case given = unflat(t, c);
    given.in.rounded = rounded;
    return Tensors{run(memory_chunks, given, 16)[0]};
  };
  const auto loop = [&](const Tensors& t) { return Tensors{run(reference_memory, unflat(t, c), 16)[0]}; };
  testing::expect_precision(chunks, loop, flat(c), ops::test::test_device());
}

}  // namespace
}  // namespace lazy
