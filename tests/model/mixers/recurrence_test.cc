// Tests of the chunkwise forms of the recurrences against the loops that define them, and of the loops against explicit
// sums.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/mixers/recurrence_cases.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using namespace lazy::testing;

constexpr int64_t kChunk = 8;
const std::vector<int64_t> kLengths = {1, 5, kChunk, kChunk + 1, 3 * kChunk + 7};

// Returns the inputs restricted to the tokens [begin, end).
Inputs part(Inputs in, int64_t begin, int64_t end) {
  for (at::Tensor* t : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta}) {
    if (t->defined() && t->dim() > 1) *t = t->slice(1, begin, end);
  }
  return in;
}

// Returns the product of the decays of tokens s + 1 to t for one head: exp of the sum of their logarithms.
double fade(const at::Tensor& log_decay, int64_t b, int64_t s, int64_t t, int64_t h) {
  double sum = 0;
  for (int64_t i = s + 1; i <= t && log_decay.defined(); ++i) {
    sum += log_decay.dim() == 1 ? log_decay[h].item<double>() : log_decay[b][i][h].item<double>();
  }
  return std::exp(sum);
}

TEST(Recurrence, Decay_MatchesExplicitSum) {
  for (const Case& c : cases(6)) {
    if (c.delta) continue;
    const Inputs in = c.inputs(3);
    const Outputs loop = c.loop(in);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t g = h / (c.heads / c.groups);
        for (int64_t t = 0; t < c.length; ++t) {
          at::Tensor sum = at::zeros({c.value_dim}, in.v.options());
          for (int64_t s = 0; s <= t; ++s) {
            const at::Tensor v = in.beta.defined() ? in.beta[b][s][h] * in.v[b][s][h] : in.v[b][s][h];
            sum += in.scale * in.q[b][t][g].dot(in.k[b][s][g]) * fade(in.log_decay, b, s, t, h) * v;
          }
          if (in.skip.defined()) sum += in.skip[h] * in.v[b][t][h];
          EXPECT_LT(distance(loop.out[b][t][h], sum), 1e-12) << c.name;
        }
      }
    }
  }
}

// Checks the state S_t = (I - beta k k^T) a S_{t-1} + beta k v^T with explicit matrix products, where a is the decay of
// token t.
TEST(Recurrence, DeltaRule_MatchesMatrixProducts) {
  for (const Case& c : cases(6)) {
    if (!c.delta) continue;
    const Inputs in = c.inputs(5);
    const Outputs loop = c.loop(in);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        at::Tensor S = at::zeros({c.key_dim, c.value_dim}, in.v.options());
        for (int64_t t = 0; t < c.length; ++t) {
          const at::Tensor k = in.k[b][t][h], beta = in.beta[b][t][h];
          const at::Tensor forget = at::eye(c.key_dim, k.options()) - beta * at::outer(k, k);
          S = at::mm(forget * fade(in.log_decay, b, t - 1, t, h), S) + beta * at::outer(k, in.v[b][t][h]);
          EXPECT_LT(distance(loop.out[b][t][h], in.scale * at::mv(S.t(), in.q[b][t][h])), 1e-12) << c.name;
        }
        EXPECT_LT(distance(loop.state[b][h], S), 1e-12) << c.name;
      }
    }
  }
}

TEST(Recurrence, Chunks_MatchLoop) {
  for (const int64_t length : kLengths) {
    for (const bool started : {false, true}) {
      for (const Case& c : cases(length)) {
        Inputs in = c.inputs(7);
        if (started) in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 11);
        const Outputs loop = c.loop(in), chunks = c.chunks(in, kChunk);
        EXPECT_LT(distance(chunks.out, loop.out), 1e-10) << c.name << ", length " << length;
        EXPECT_LT(distance(chunks.state, loop.state), 1e-10) << c.name << ", length " << length;
      }
    }
  }
}

// Tests a sequence that is so long that the program divides it into several spans, which it computes one after the
// other.
TEST(Recurrence, SeveralSpans_MatchLoop) {
  for (Case c : cases(3000, 3)) {
    if (c.decay != Decay::tokens) continue;
    c.key_dim = 2, c.value_dim = 1;
    const Inputs in = c.inputs(8);
    const Outputs loop = c.loop(in), chunks = c.chunks(in, 64);
    EXPECT_LT(distance(chunks.out, loop.out), 1e-10) << c.name;
    EXPECT_LT(distance(chunks.state, loop.state), 1e-10) << c.name;
  }
}

TEST(Recurrence, SingleTokens_ContinuePrefill) {
  for (const Case& c : cases(2 * kChunk + 3)) {
    const Inputs all = c.inputs(13);
    const Outputs whole = c.chunks(all, kChunk);
    Outputs now = c.chunks(part(all, 0, kChunk + 2), kChunk);
    EXPECT_LT(distance(now.out, whole.out.narrow(1, 0, kChunk + 2)), 1e-10) << c.name;
    for (int64_t t = kChunk + 2; t < c.length; ++t) {
      Inputs one = part(all, t, t + 1);
      one.initial_state = now.state;
      const at::Tensor before = now.state.clone();
      now = c.delta ? recurrence::delta_rule(one, kChunk) : recurrence::decay(one, kChunk);
      EXPECT_TRUE(one.initial_state.equal(before)) << c.name << ": the state must not be modified in place";
      EXPECT_LT(distance(now.out, whole.out.narrow(1, t, 1)), 1e-10) << c.name;
    }
    EXPECT_LT(distance(now.state, whole.state), 1e-10) << c.name;
  }
}

TEST(Recurrence, PackedDocuments_AreIndependent) {
  // The documents end within a chunk or at the end of a chunk. Two documents are in one chunk, one is empty, and one is
  // longer than several chunks.
  const std::vector<int64_t> starts = {0, 3, 5, 16, 16, 19, 47};
  for (const Case& c : cases(47, 1)) {
    const Inputs all = c.inputs(17);
    Inputs packed = all;
    packed.cu_seqlens = here(at::tensor(starts, at::kLong).to(at::kInt));
    const Outputs loop = c.loop(packed), chunks = c.chunks(packed, kChunk);
    EXPECT_FALSE(chunks.state.defined());
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      if (starts[i] == starts[i + 1]) continue;
      const at::Tensor alone = c.loop(part(all, starts[i], starts[i + 1])).out;
      EXPECT_LT(distance(loop.out.slice(1, starts[i], starts[i + 1]), alone), 1e-10) << c.name << ", document " << i;
      EXPECT_LT(distance(chunks.out.slice(1, starts[i], starts[i + 1]), alone), 1e-10) << c.name << ", document " << i;
    }
  }
}

// Tests packed documents in a sequence so long that it is computed in several spans, one after the other. Some
// documents start at the start of a span, others within a span.
TEST(Recurrence, PackedDocumentsAcrossSpans_AreIndependent) {
  const std::vector<int64_t> starts = {0, 100, 8192, 16380, 20000};
  for (Case c : cases(20000, 1)) {
    c.key_dim = 2, c.value_dim = 1, c.groups = 1, c.heads = 1;
    const Inputs all = c.inputs(18);
    Inputs packed = all;
    packed.cu_seqlens = here(at::tensor(starts, at::kLong));
    const at::Tensor out = c.chunks(packed, 64).out;
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      const Outputs alone = c.chunks(part(all, starts[i], starts[i + 1]), 64);
      EXPECT_LT(distance(out.slice(1, starts[i], starts[i + 1]), alone.out), 1e-10) << c.name << ", document " << i;
    }
  }
}

// Compares the gradients of a loss, which contains the output and the last state, with autograd through the loop.
TEST(Recurrence, Gradients_MatchLoop) {
  for (const bool packed : {false, true}) {
    for (const Case& c : cases(3 * kChunk + 7, packed ? 1 : 2)) {
      Inputs in = c.inputs(19);
      if (packed) {
        in.cu_seqlens = here(at::tensor({0, 3, 16, 31}, at::kLong));
      } else {
        in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 23);
      }
      const auto gradients = [&](bool by_chunks) {
        Inputs copy = in;
        const std::vector<at::Tensor> wanted = leaves(copy);
        const Outputs y = by_chunks ? c.chunks(copy, kChunk) : c.loop(copy);
        at::Tensor loss = (y.out * randn(y.out.sizes(), 29)).sum();
        if (y.state.defined()) loss = loss + (y.state * randn(y.state.sizes(), 31)).sum();
        return torch::autograd::grad({loss}, wanted);
      };
      const auto ours = gradients(true), theirs = gradients(false);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_LT(distance(ours[i], theirs[i]), 1e-10) << c.name << ", input " << i << (packed ? ", packed" : "");
      }
    }
  }
}

// Compares the gradients with central differences in a random direction. These do not use autograd, so they also check
// the loop's gradients.
TEST(Recurrence, Gradients_MatchFiniteDifferences) {
  for (const Case& c : cases(kChunk + 3)) {
    Inputs in = c.inputs(37);
    in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 41);
    if (in.log_decay.defined()) in.log_decay = in.log_decay.clamp_min(-3);
    const std::vector<at::Tensor> wanted = leaves(in);
    const auto loss = [&](const Inputs& at) {
      const Outputs y = c.chunks(at, kChunk);
      return (y.out * randn(y.out.sizes(), 43)).sum() + (y.state * randn(y.state.sizes(), 47)).sum();
    };
    const auto gradients = torch::autograd::grad({loss(in)}, wanted);
    const at::NoGradGuard guard;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const at::Tensor direction = randn(wanted[i].sizes(), 53 + i), was = wanted[i].clone();
      constexpr double kStep = 1e-5;
      wanted[i].copy_(was + kStep * direction);
      const double above = loss(in).item<double>();
      wanted[i].copy_(was - kStep * direction);
      const double below = loss(in).item<double>();
      wanted[i].copy_(was);
      const double slope = (gradients[i] * direction).sum().item<double>();
      EXPECT_NEAR((above - below) / (2 * kStep), slope, 1e-7 * (1 + std::abs(slope))) << c.name << ", input " << i;
    }
  }
}

// The distance of our results from float64 must be at most twice the distance of the fp32 loop whose inputs and outputs
// are rounded to the dtype, plus one rounding.
TEST(Recurrence, LowPrecision_IsWithinTwiceReferenceError) {
  for (const auto& [type, epsilon] : {std::pair{at::kFloat, 0x1p-24}, std::pair{at::kBFloat16, 0x1p-9}}) {
    for (Case c : cases(3 * 64 + 7)) {
      c.key_dim = 16, c.value_dim = 24;
      const Inputs exact_in = c.inputs(59);
      Inputs in = exact_in, plain = exact_in, exact = exact_in;
      for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::beta}) {
        if (!(in.*t).defined()) continue;
        in.*t = (in.*t).to(type);
        plain.*t = (in.*t).to(at::kFloat);
      }
      if (in.log_decay.defined()) plain.log_decay = in.log_decay = in.log_decay.to(at::kFloat);
      const at::Tensor truth = c.loop(exact).out, ours = c.chunks(in, 64).out;
      EXPECT_EQ(ours.scalar_type(), type);
      const at::Tensor reference = c.loop(plain).out.to(type);
      const auto far = [&](const at::Tensor& x) { return (x.to(at::kDouble) - truth).norm().item<double>(); };
      EXPECT_LT(far(ours), 2 * far(reference) + epsilon * truth.norm().item<double>())
          << c.name << " " << toString(type);
    }
  }
}

// The decays are near 1 in the first head and near 0 in the second head, and they alternate between near 1 and 0 in the
// third head. The sequence is so long that the exponential of a sum of its log decays, or the inverse, would overflow.
TEST(Recurrence, LongDecays_StayFinite) {
  constexpr int64_t kLength = 100000;
  for (const bool delta : {false, true}) {
    Case c{.name = "long", .delta = delta, .length = kLength, .groups = 1, .heads = 3, .key_dim = 2, .value_dim = 1};
    Inputs in = c.inputs(61);
    for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::beta}) {
      if ((in.*t).defined()) in.*t = (in.*t).to(at::kFloat);
    }
    if (delta) in.q = in.q.expand({1, kLength, 3, 2}), in.k = in.k.expand({1, kLength, 3, 2});
    at::Tensor log_decay = at::full({1, kLength, 3}, -1e-6, in.v.options());
    log_decay.select(2, 1).fill_(-200);
    log_decay.select(2, 2).slice(1, 0, kLength, 2).fill_(-INFINITY);
    in.log_decay = log_decay;
    constexpr int64_t kFirst = 3000;
    Inputs first = part(in, 0, kFirst);
    const std::vector<at::Tensor> wanted = leaves(first);
    const auto gradients = torch::autograd::grad({c.chunks(first, 64).out.square().sum()}, wanted);
    for (size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(gradients[i].isfinite().all().item<bool>()) << "input " << i;
    const at::NoGradGuard guard;
    const Outputs y = c.chunks(in, 64);
    EXPECT_TRUE(y.out.isfinite().all().item<bool>());
    Inputs exact = part(in, 0, kFirst);
    for (at::Tensor Inputs::*t : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::beta, &Inputs::log_decay}) {
      if ((exact.*t).defined()) exact.*t = (exact.*t).to(at::kDouble);
    }
    const at::Tensor truth = c.loop(exact).out;
    EXPECT_LT(distance(y.out.slice(1, 0, kFirst), truth), 2e-6 * truth.abs().max().item<double>())
        << (delta ? "delta" : "decay");
  }
}

TEST(Recurrence, EmptyInput_IsAccepted) {
  for (Case c : cases(0)) {
    Inputs in = c.inputs(67);
    in.initial_state = randn({c.batch, c.heads, c.key_dim, c.value_dim}, 71);
    const Outputs y = c.chunks(in, kChunk);
    EXPECT_EQ(y.out.sizes(), in.v.sizes());
    EXPECT_TRUE(y.state.equal(in.initial_state));
  }
}

TEST(Recurrence, ShapeErrors_NameInput) {
  const Case c = cases(4)[0];
  const auto message = [&](auto change) {
    Inputs in = c.inputs(73);
    change(in);
    return error_of([&] { c.chunks(in, kChunk); });
  };
  EXPECT_THAT(message([](Inputs& in) { in.log_decay = at::zeros({3}); }), Names({"log_decay", "[2]", "[3]"}));
  EXPECT_THAT(message([](Inputs& in) { in.initial_state = at::zeros({1}); }),
              Names({"initial_state", std::string("[2, 2, 5, 3]"), "[1]"}));
  EXPECT_THAT(message([](Inputs& in) { in.cu_seqlens = at::zeros({2}, at::kInt); }), Names({"batch", 1, 2}));
  EXPECT_THAT(message([](Inputs& in) { in.v = in.v.narrow(1, 0, 3); }),
              Names({"q", std::string("[2, 4, 2, 5]"), "v", std::string("[2, 3, 2, 3]"), 2}));
}

}  // namespace
}  // namespace lazy
