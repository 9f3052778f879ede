// Tests of the short convolution against its definition and against PyTorch's grouped convolution.
#include "model/mixers/recurrence/short_convolution.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/mixers/recurrence_cases.h"
#include "model/mixers/reference_rules.h"

namespace lazy {
namespace {

using recurrence::Convolution;
using recurrence::ConvolutionInputs;
using recurrence::short_convolution;
using testing::distance;
using testing::here;
using testing::randn;

ConvolutionInputs inputs(int64_t length, int64_t taps, bool bias, int64_t batch = 2) {
  ConvolutionInputs in{.x = randn({batch, length, 6}, 1), .weight = randn({6, 1, taps}, 2)};
  if (bias) in.bias = randn({6}, 3);
  return in;
}

TEST(ShortConvolution, Convolution_MatchesGroupedConvolution) {
  for (const int64_t length : {1, 2, 3, 17}) {
    for (const int64_t taps : {1, 2, 4}) {
      for (const bool bias : {false, true}) {
        const ConvolutionInputs in = inputs(length, taps, bias);
        const at::Tensor padded = at::constant_pad_nd(in.x.transpose(1, 2), {taps - 1, 0});
        const at::Tensor expected =
            at::silu(at::conv1d(padded, in.weight, in.bias, 1, c10::IntArrayRef{0}, 1, 6)).transpose(1, 2);
        EXPECT_LT(distance(reference_short_convolution(in).out, expected), 1e-13);
        EXPECT_LT(distance(short_convolution(in).out, expected), 1e-13);
      }
    }
  }
}

// Computes one token per sequence, for more sequences than a GPU grid may have blocks along an axis.
TEST(ShortConvolution, SingleTokenOfManySequences_MatchesSeparateSequences) {
  const int64_t batch = 70000, few = 3;
  ConvolutionInputs in = inputs(1, 4, true, batch);
  in.state = randn({batch, 3, 6}, 4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    ConvolutionInputs all = in;
    all.x = in.x.to(type), all.state = in.state.to(type);
    all.weight = in.weight.to(at::kFloat), all.bias = in.bias.to(at::kFloat);
    ConvolutionInputs last = all;
    last.x = all.x.narrow(0, batch - few, few), last.state = all.state.narrow(0, batch - few, few);
    const at::NoGradGuard guard;
    const Convolution whole = short_convolution(all), alone = short_convolution(last);
    EXPECT_TRUE(whole.out.narrow(0, batch - few, few).equal(alone.out));
    EXPECT_TRUE(whole.state.narrow(0, batch - few, few).equal(alone.state));
  }
}

TEST(ShortConvolution, SingleTokens_ContinuePrefill) {
  for (const int64_t first : {0, 1, 2, 9}) {
    const ConvolutionInputs all = inputs(12, 4, true);
    const Convolution whole = short_convolution(all);
    ConvolutionInputs part = all;
    part.x = all.x.narrow(1, 0, first);
    Convolution now = short_convolution(part);
    EXPECT_LT(distance(now.out, whole.out.narrow(1, 0, first)), 1e-13);
    for (int64_t t = first; t < 12; ++t) {
      part.x = all.x.narrow(1, t, 1);
      part.state = now.state;
      EXPECT_LT(distance(reference_short_convolution(part).out, whole.out.narrow(1, t, 1)), 1e-13);
      now = short_convolution(part);
      EXPECT_LT(distance(now.out, whole.out.narrow(1, t, 1)), 1e-13);
    }
    EXPECT_TRUE(now.state.equal(whole.state));
    EXPECT_TRUE(whole.state.equal(all.x.narrow(1, 9, 3)));
  }
}

// Computes one token at a time, for which a GPU uses a separate kernel.
TEST(ShortConvolution, SingleTokens_MatchWholeSequence) {
  const at::NoGradGuard guard;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t taps : {2, 4}) {
      ConvolutionInputs in{.x = randn({2, 9, 40}, 1, type), .weight = randn({40, 1, taps}, 2, at::kFloat)};
      if (taps == 4) in.bias = randn({40}, 3, at::kFloat);
      const Convolution whole = short_convolution(in);
      const at::Tensor x = in.x;
      in.x = x.narrow(1, 0, 3);
      Convolution now = short_convolution(in);
      for (int64_t t = 3; t < 9; ++t) {
        in.x = x.narrow(1, t, 1);
        in.state = now.state;
        now = short_convolution(in);
        // A CPU computes SiLU with vector instructions, but the last elements of a row with scalar code, whose exp
        // rounds differently.
        const double most = in.x.is_cuda() ? 0 : type == at::kFloat ? 1e-5 : 0x1p-5;
        EXPECT_LE(distance(now.out, whole.out.narrow(1, t, 1)), most) << type << ", token " << t;
      }
      EXPECT_TRUE(now.state.equal(whole.state));
    }
  }
}

TEST(ShortConvolution, PackedDocuments_AreIndependent) {
  const std::vector<int64_t> starts = {0, 1, 3, 3, 8, 15};
  ConvolutionInputs in = inputs(15, 4, true, 1);
  const at::Tensor x = in.x;
  in.cu_seqlens = here(at::tensor(starts, at::kLong).to(at::kInt));
  const at::Tensor packed = short_convolution(in).out, loop = reference_short_convolution(in).out;
  in.cu_seqlens = at::Tensor();
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    in.x = x.slice(1, starts[i], starts[i + 1]);
    EXPECT_LT(distance(packed.slice(1, starts[i], starts[i + 1]), short_convolution(in).out), 1e-13)
        << "document " << i;
    EXPECT_LT(distance(loop.slice(1, starts[i], starts[i + 1]), short_convolution(in).out), 1e-13) << "document " << i;
  }
}

TEST(ShortConvolution, Gradients_MatchLoop) {
  for (const bool packed : {false, true}) {
    ConvolutionInputs in = inputs(9, 4, true, 1);
    if (packed) in.cu_seqlens = here(at::tensor({0, 2, 9}, at::kLong));
    std::vector<at::Tensor> wanted;
    for (at::Tensor* t : {&in.x, &in.weight, &in.bias}) {
      t->requires_grad_(true);
      wanted.push_back(*t);
    }
    const auto gradients = [&](const at::Tensor& y) {
      return torch::autograd::grad({(y * randn(y.sizes(), 5)).sum()}, wanted);
    };
    const auto ours = gradients(short_convolution(in).out), theirs = gradients(reference_short_convolution(in).out);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_LT(distance(ours[i], theirs[i]), 1e-12) << "input " << i;
  }
}

TEST(ShortConvolution, Bf16_IsAccumulatedInFp32) {
  ConvolutionInputs in = inputs(40, 4, true), wide;
  for (at::Tensor ConvolutionInputs::*t :
       {&ConvolutionInputs::x, &ConvolutionInputs::weight, &ConvolutionInputs::bias}) {
    in.*t = (in.*t).to(at::kBFloat16);
    wide.*t = (in.*t).to(at::kDouble);
  }
  const at::Tensor exact = reference_short_convolution(wide).out, ours = short_convolution(in).out;
  EXPECT_EQ(ours.scalar_type(), at::kBFloat16);
  // The result may differ from the exact value by one rounding to bf16.
  EXPECT_LT(((ours.to(at::kDouble) - exact).abs() - 0x1p-8 * exact.abs()).max().item<double>(), 1e-6);
}

}  // namespace
}  // namespace lazy
