// Tests of the fused operators on the CPU or on the device of LAZY_TEST_DEVICE. Values and gradients are compared with
// float64 compositions of ATen operations. The allowed error is twice the error of the same composition with inputs and
// outputs rounded to the type, plus one rounding.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>

#include "ops/attention.h"
#include "ops/device.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/short_convolution.h"
#include "ops/swiglu.h"
#include "ops/torch_error_of.h"

namespace lazy::ops {

namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

const c10::Device kDevice = test::test_device();
const bool kOnGpu = kDevice.is_cuda();

// The numbers are drawn on the CPU, so that they are equal on every device.
at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).to(kDevice); }
at::Tensor here(const at::Tensor& t) { return t.to(kDevice); }

double error(const at::Tensor& x, const at::Tensor& truth) {
  return ((x.to(at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

// Returns the outputs of `function`, followed by the gradients with respect to its inputs. The loss is the sum of all
// output elements, each multiplied by a fixed random number.
Tensors run(const Function& function, const Tensors& inputs, at::ScalarType compute, at::ScalarType round) {
  Tensors leaves, cast;
  for (const at::Tensor& t : inputs) {
    leaves.push_back(t.detach().to(compute).set_requires_grad(true));
    cast.push_back(leaves.back());
  }
  Tensors result = function(cast);
  at::manual_seed(77);
  at::Tensor sum = here(at::zeros({}, at::kDouble));
  for (const at::Tensor& y : result) sum = sum + (y.to(at::kDouble) * here(at::randn(y.sizes(), at::kDouble))).sum();
  const Tensors gradients = torch::autograd::grad({sum}, leaves);
  result.insert(result.end(), gradients.begin(), gradients.end());
  for (at::Tensor& t : result) t = t.detach().to(round).to(at::kDouble);
  return result;
}

void expect_matches(const Function& ours, const Function& plain, const Tensors& shapes_of, at::ScalarType type) {
  Tensors inputs;
  for (const at::Tensor& t : shapes_of) inputs.push_back(t.to(type));
  const Tensors truth = run(plain, inputs, at::kDouble, at::kDouble), second = run(plain, inputs, at::kFloat, type);
  const Tensors found = run(ours, inputs, type, type);
  ASSERT_EQ(found.size(), truth.size());
  const double rounding = type == at::kFloat ? 0x1p-24 : type == at::kHalf ? 0x1p-11 : 0x1p-8;
  for (size_t n = 0; n < found.size(); ++n) {
    EXPECT_LE(error(found[n], truth[n]), 2 * error(second[n], truth[n]) + 2 * rounding)
        << "result " << n << " in " << type;
  }
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& w) {
  return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * w;
}

class Fused : public testing::TestWithParam<at::ScalarType> {};

// Returns row lengths. On a GPU they cover rows for one warp and for several warps, rows whose length is not a multiple
// of the vector size, and rows that do not fit in the registers of a block. Rows of one or two elements are excluded:
// the gradient of the weight would have only one or two elements, which the reference with rounded inputs and outputs
// could match exactly by chance.
std::vector<int64_t> row_lengths() {
  return kOnGpu ? std::vector<int64_t>{7, 64, 200, 1024, 1030, 5120, 9000, 40000} : std::vector<int64_t>{7, 64, 200};
}

TEST_P(Fused, RmsNorm_MatchesReference) {
  at::manual_seed(1);
  for (int64_t dim : row_lengths()) {
    SCOPED_TRACE(dim);
    expect_matches([](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], 1e-6)}; },
                   [](const Tensors& t) { return Tensors{plain_norm(t[0], t[1])}; },
                   {random({3, 50, dim}), random({dim})}, GetParam());
  }
}

TEST_P(Fused, AddRmsNorm_MatchesReference) {
  at::manual_seed(2);
  for (int64_t dim : row_lengths()) {
    SCOPED_TRACE(dim);
    // The values are multiples of 1/32, so that the sum x + r is exact in every type. The float64 reference and the
    // rounded reference therefore normalize the same values.
    const auto thirty_seconds = [&] { return here(at::randint(-64, 64, {3, 70, dim}).div(32.0)); };
    const at::Tensor x = thirty_seconds(), r = thirty_seconds();
    expect_matches(
        [](const Tensors& t) {
          auto [y, sum] = add_rms_norm(t[0], t[1], t[2], 1e-6);
          return Tensors{y, sum};
        },
        [](const Tensors& t) {
          return Tensors{plain_norm(t[0] + t[1], t[2]), t[0] + t[1]};
        },
        {x, r, random({dim})}, GetParam());
  }
}

// As in training, the norm's weight is in fp32, and the normalized rows have 16 bits.
TEST_P(Fused, RmsNorm_AcceptsFloat32Weights) {
  at::manual_seed(6);
  const auto exact = [](const at::Tensor& t) { return t.detach().to(at::kDouble).set_requires_grad(true); };
  const at::Tensor x = random({37, 1536}).to(GetParam()).set_requires_grad(true),
                   w = random({1536}).set_requires_grad(true);
  const at::Tensor x64 = exact(x), w64 = exact(w);
  const at::Tensor d = random({37, 1536}).to(GetParam());
  const at::Tensor y = rms_norm(x, w, 1e-6), y64 = plain_norm(x64, w64);
  EXPECT_EQ(y.scalar_type(), GetParam());
  const Tensors found = torch::autograd::grad({y}, {x, w}, {d});
  const Tensors truth = torch::autograd::grad({y64}, {x64, w64}, {d.to(at::kDouble)});
  const double rounding = GetParam() == at::kFloat ? 0x1p-21 : GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8;
  EXPECT_LE(error(y, y64), rounding);
  EXPECT_LE(error(found[0], truth[0]), rounding);
  EXPECT_EQ(found[1].scalar_type(), at::kFloat);
  EXPECT_LE(error(found[1], truth[1]), 0x1p-20);
}

TEST_P(Fused, WeightGradient_IsReproducible) {
  at::manual_seed(7);
  const at::Tensor x = random({3000, 256}).to(GetParam()), d = random({3000, 256}).to(GetParam());
  const at::Tensor w = random({256}).set_requires_grad(true);
  const auto gradient = [&] { return torch::autograd::grad({rms_norm(x, w, 1e-6)}, {w}, {d})[0]; };
  EXPECT_TRUE(at::equal(gradient(), gradient()));
}

TEST_P(Fused, EmptyInputs_ReturnEmptyOutputs) {
  const auto none = [&](at::IntArrayRef sizes) { return here(at::zeros(sizes, GetParam())).set_requires_grad(true); };
  const auto check = [](const at::Tensor& y, const Tensors& leaves, at::IntArrayRef sizes) {
    EXPECT_EQ(y.sizes(), sizes);
    for (const at::Tensor& g : torch::autograd::grad({y.sum()}, leaves)) EXPECT_EQ(g.abs().sum().item<double>(), 0);
  };
  const Tensors x{none({0, 24}), none({24})}, halves{none({0, 24}), none({0, 24})}, heads{none({2, 0, 3, 16})};
  check(rms_norm(x[0], x[1], 1e-6), x, {0, 24});
  check(swiglu(halves[0], halves[1]), halves, {0, 24});
  check(rope(heads[0], 1e4), heads, {2, 0, 3, 16});
  const at::Tensor labels = here(at::zeros({0}, at::kLong));
  EXPECT_TRUE(std::isnan(std::get<0>(linear_cross_entropy(x[0], none({11, 24}), labels)).item<float>()));
}

TEST_P(Fused, NaN_PropagatesToItsRow) {
  const at::Tensor x = random({6, 64}).to(GetParam()), w = random({64});
  x[2][5] = NAN;
  const auto rows_with_nan = [](const at::Tensor& y) { return at::isnan(y).any(-1).to(at::kCPU); };
  const at::Tensor expected = at::arange(6).eq(2);
  EXPECT_TRUE(at::equal(rows_with_nan(rms_norm(x, w, 1e-6)), expected));
  EXPECT_TRUE(at::equal(rows_with_nan(swiglu(x, x)), expected));
  EXPECT_TRUE(at::equal(rows_with_nan(rope(x.view({6, 1, 64}), 1e4).view({6, 64})), expected));
  const at::Tensor labels = here(at::zeros({6}, at::kLong));
  const auto [loss, log_prob, correct] = linear_cross_entropy(x, random({9, 64}).to(GetParam()), labels);
  EXPECT_TRUE(at::equal(at::isnan(log_prob).to(at::kCPU), expected));
  EXPECT_TRUE(std::isnan(loss.item<float>()));
}

TEST_P(Fused, SwigluOfHalves_MatchesReference) {
  at::manual_seed(3);
  for (int64_t dim : {1, 24, 171, 1000}) {
    auto halves = [](const at::Tensor& t) { return t.chunk(2, -1); };
    expect_matches([&](const Tensors& t) { return Tensors{swiglu(halves(t[0])[0], halves(t[0])[1])}; },
                   [&](const Tensors& t) { return Tensors{at::silu(halves(t[0])[0]) * halves(t[0])[1]}; },
                   {random({5, 13, 2 * dim}) * 3}, GetParam());
  }
}

TEST_P(Fused, SwigluHalvesBackward_MatchesSwigluBackward) {
  at::manual_seed(4);
  for (int64_t dim : {1, 24, 171, 1000}) {
    const at::Tensor all = random({5, 13, 2 * dim + 8}).to(GetParam()) * 3, d_y = random({5, 13, dim}).to(GetParam());
    const at::Tensor gate_up = all.narrow(2, 8, 2 * dim);  // a view of columns 8 to 8 + 2 dim of wider rows
    const auto halves = gate_up.chunk(2, -1);
    const auto [d_gate, d_up] = swiglu_backward(d_y, halves[0], halves[1]);
    const auto [d_gate_up, y] = swiglu_halves_backward(d_y, gate_up, true);
    EXPECT_TRUE(at::equal(d_gate_up, at::cat({d_gate, d_up}, -1))) << dim;
    EXPECT_TRUE(at::equal(y, swiglu(halves[0], halves[1]))) << dim;
    const auto [same, none] = swiglu_halves_backward(d_y, gate_up, false);
    EXPECT_TRUE(at::equal(same, d_gate_up)) << dim;
    EXPECT_EQ(none.numel(), 0);
  }
}

// Covers runs of consecutive tokens (a GPU thread computes one run) that start and end within packed documents, numbers
// of channels that are and that are not multiples of the vector size, and an input whose rows are slices of wider rows.
TEST_P(Fused, ShortConvolution_MatchesReference) {
  at::manual_seed(11);
  const at::Tensor starts = at::tensor({0L, 1L, 3L, 3L, 31L, 32L, 64L, 200L});
  const at::Tensor place =
      at::arange(200) - starts.index_select(0, at::searchsorted(starts, at::arange(200), false, true) - 1);
  for (const bool packed : {false, true}) {
    for (const auto& [length, channels, taps] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {200, 264, 4}, {200, 7, 4}, {200, 16, 1}, {200, 24, 2}, {200, 8, 8}, {2, 64, 4}}) {
      if (packed && length != 200) continue;
      SCOPED_TRACE(std::to_string(length) + " " + std::to_string(channels) + " " + std::to_string(taps) +
                   (packed ? " packed" : ""));
      const int64_t L = length, D = channels, n = taps;
      const std::optional<at::Tensor> cu_seqlens = packed ? std::optional(here(starts.to(at::kInt))) : std::nullopt;
      const auto plain = [&](const Tensors& t) {
        const at::Tensor padded = at::constant_pad_nd(t[0].narrow(2, 8, D), {0, 0, n - 1, 0});
        at::Tensor sum = t[2];
        for (int64_t j = 0; j < n; ++j) {
          at::Tensor seen = padded.narrow(1, j, L);
          if (packed) seen = seen * here(place.ge(n - 1 - j)).to(seen.scalar_type()).unsqueeze(1);
          sum = sum + seen * t[1].select(2, j).squeeze(1);
        }
        return Tensors{at::silu(sum)};
      };
      expect_matches(
          [&](const Tensors& t) {
            return Tensors{short_convolution(t[0].narrow(2, 8, D), t[1], t[2], {}, cu_seqlens)};
          },
          plain, {random({packed ? 1 : 2, L, D + 16}), random({D, 1, n}), random({D})}, GetParam());
    }
  }
}

// With `past`, the result is the same as if the previous inputs were part of x. The weights stay in fp32 even if the
// inputs have 16 bits.
TEST_P(Fused, ShortConvolution_ContinuesFromPast) {
  at::manual_seed(12);
  const at::Tensor x = random({2, 70, 40}).to(GetParam()), w = random({40, 1, 4}), b = random({40});
  const at::Tensor whole = short_convolution(x, w, b, {}, {});
  for (const int64_t first : {3, 33}) {
    const at::Tensor past = x.narrow(1, first - 3, 3);
    EXPECT_TRUE(at::allclose(short_convolution(x.slice(1, first), w, b, past, {}), whole.slice(1, first), 1e-6, 1e-6))
        << first;
  }
  const at::Tensor weight = w.detach().set_requires_grad(true), d = random({2, 70, 40}).to(GetParam());
  const auto gradient = [&] {
    return torch::autograd::grad({short_convolution(x, weight, b, {}, {})}, {weight}, {d})[0];
  };
  EXPECT_EQ(gradient().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(gradient(), gradient()));
}

// Tests batch sizes and lengths that exceed the grid limit of the GPU, so that several launches are needed. The last
// elements must equal the results of a call with only these elements.
TEST_P(Fused, ShortConvolution_ExceedsGridLimit) {
  at::manual_seed(13);
  const at::Tensor w = random({8, 1, 4}), b = random({8});
  const auto expect_same_end = [&](at::IntArrayRef sizes, int64_t axis, int64_t few, int64_t compared) {
    const at::Tensor x = random(sizes).to(GetParam()), d = random(sizes).to(GetParam());
    const auto results = [&](const at::Tensor& in, const at::Tensor& d_y) {
      const at::Tensor leaf = in.detach().clone().set_requires_grad(true);
      const at::Tensor y = short_convolution(leaf, w, b, {}, {});
      return Tensors{y.detach(), torch::autograd::grad({y}, {leaf}, {d_y})[0]};
    };
    const Tensors whole = results(x, d);
    const auto end = [&](const at::Tensor& t, int64_t count) { return t.narrow(axis, t.size(axis) - count, count); };
    const Tensors alone = results(end(x, few), end(d, few));
    for (size_t n = 0; n < whole.size(); ++n) {
      EXPECT_TRUE(at::allclose(end(whole[n], compared), end(alone[n], compared), 1e-6, 1e-6)) << sizes << ", " << n;
    }
  };
  expect_same_end({70000, 3, 8}, 0, 5, 5);
  if (kDevice.is_cuda()) expect_same_end({1, (int64_t{65535} * 128) + 1000, 8}, 1, 300, 200);
}

TEST_P(Fused, Rope_MatchesReference) {
  at::manual_seed(4);
  const int64_t length = 9;
  const std::vector<std::pair<int64_t, int64_t>> sizes{{40, 40}, {40, 12}, {64, 64}, {128, 32}};
  for (const bool interleaved : {false, true}) {
    for (const auto& [dim, rotary_dim] : sizes) {
      for (const std::string type : {"none", "linear", "llama3", "yarn", "longrope"}) {
        const int64_t rotary = rotary_dim;
        RopeOptions options;
        options.rotary_dim = rotary;
        options.interleaved = interleaved;
        options.scaling.type = type;
        options.scaling.factor = type == "none" ? 1 : 8;
        options.scaling.original_length = 64;
        for (int64_t n = 0; type == "longrope" && n < rotary / 2; ++n)
          options.scaling.pair_factors.push_back(0.8 + 0.3 * static_cast<double>(n));
        if (interleaved) options.positions = here(at::tensor({0L, 3L, 1L, 1L, 70L, 2L, 5L, 8L, 400L}));
        const int64_t offset = interleaved ? 0 : 5;
        const at::Tensor places =
            interleaved ? options.positions : here(at::arange(offset, offset + length, at::kLong));
        auto plain = [&](const Tensors& t) {
          const auto [frequencies, factor] = rope_frequencies(1.5e5, rotary, options.scaling);
          const at::Tensor angle = places.to(at::kDouble).unsqueeze(1) * here(at::tensor(frequencies, at::kDouble));
          const at::Tensor c = (factor * angle.cos()).to(t[0].scalar_type()).unsqueeze(1);
          const at::Tensor s = (factor * angle.sin()).to(t[0].scalar_type()).unsqueeze(1);
          const at::Tensor turned = t[0].slice(-1, 0, rotary), rest = t[0].slice(-1, rotary);
          const at::Tensor a = interleaved ? turned.slice(-1, 0, rotary, 2) : turned.slice(-1, 0, rotary / 2);
          const at::Tensor b = interleaved ? turned.slice(-1, 1, rotary, 2) : turned.slice(-1, rotary / 2);
          const at::Tensor first = a * c - b * s, second = b * c + a * s;
          const at::Tensor both =
              interleaved ? at::stack({first, second}, -1).flatten(-2) : at::cat({first, second}, -1);
          return Tensors{at::cat({both, rest}, -1)};
        };
        SCOPED_TRACE(type + (interleaved ? " interleaved " : " halves ") + std::to_string(rotary) + " " +
                     std::to_string(dim));
        expect_matches([&](const Tensors& t) { return Tensors{rope(t[0], 1.5e5, offset, options)}; }, plain,
                       {random({2, length, 3, dim})}, GetParam());
      }
    }
  }
}

TEST(FusedValues, Longrope_DividesFrequenciesByPairFactors) {
  RopeScaling scaling{.type = "longrope", .factor = 32, .original_length = 4096, .pair_factors = {1, 1.5, 40}};
  for (const double given : {0., 1.3}) {
    scaling.attention_factor = given;
    const auto [frequencies, attention_factor] = rope_frequencies(1e4, 6, scaling);
    EXPECT_EQ(attention_factor, given > 0 ? given : std::sqrt(1 + std::log(32.) / std::log(4096.)));
    ASSERT_EQ(frequencies.size(), 3U);
    EXPECT_DOUBLE_EQ(frequencies[0], 1);
    EXPECT_DOUBLE_EQ(frequencies[1], std::pow(1e4, -1. / 3) / 1.5);
    EXPECT_DOUBLE_EQ(frequencies[2], std::pow(1e4, -2. / 3) / 40);
  }
  scaling = {.type = "longrope", .factor = 0.5, .original_length = 64, .pair_factors = {1, 1, 1}};
  EXPECT_EQ(rope_frequencies(1e4, 6, scaling).attention_factor, 1);
}

// RoPE of a strided view must equal RoPE of a contiguous copy, and RoPE of one sequence must equal RoPE of the batch.
TEST_P(Fused, Rope_AcceptsStridedViews) {
  at::manual_seed(8);
  for (const int64_t dim : {40, 64}) {
    const at::Tensor x = random({2, 3, 9, dim}).to(GetParam()).transpose(1, 2);
    EXPECT_TRUE(at::equal(rope(x, 1e4), rope(x.contiguous(), 1e4)));
    EXPECT_TRUE(at::equal(rope(x[1], 1e4), rope(x, 1e4)[1]));
    // k is the slice of a fused projection between queries and values. One start of this slice is aligned to a vector,
    // the other is not.
    const at::Tensor qkv = random({2, 9, 8 * dim + 1}).to(GetParam());
    for (const int64_t begin : {4 * dim, 4 * dim + 1}) {
      const at::Tensor k = qkv.narrow(-1, begin, 2 * dim).view({2, 9, 2, dim});
      EXPECT_TRUE(at::equal(rope(k, 1e4, 3), rope(k.contiguous(), 1e4, 3)));
    }
  }
}

// Tests positions beyond the cached RoPE table, as int32 and int64, with one position per token and with separate
// positions for each sequence of the batch.
TEST_P(Fused, Rope_AcceptsPositionsOutsideTable) {
  at::manual_seed(9);
  const at::Tensor x = random({2, 4, 3, 32}).to(GetParam()), places = here(at::tensor({30000L, 7L, 123456L, 8191L}));
  RopeOptions options;
  options.positions = places;
  const at::Tensor y = rope(x, 3e4, 0, options);
  for (int64_t t = 0; t < 4; ++t) {
    EXPECT_TRUE(at::allclose(y.narrow(1, t, 1), rope(x.narrow(1, t, 1), 3e4, places[t].item<int64_t>()), 0, 0)) << t;
  }
  options.positions = places.to(at::kInt).unsqueeze(0).expand({2, 4});
  EXPECT_TRUE(at::equal(rope(x, 3e4, 0, options), y));
}

TEST_P(Fused, LinearCrossEntropy_MatchesReference) {
  at::manual_seed(5);
  for (int64_t vocabulary : {3, 1001, 32765, 60000}) {  // the last vocabulary needs several chunks
    SCOPED_TRACE(vocabulary);
    at::Tensor labels = here(at::randint(vocabulary, {150}, at::kLong));
    labels[3] = -100;
    expect_matches([&](const Tensors& t) { return Tensors{std::get<0>(linear_cross_entropy(t[0], t[1], labels))}; },
                   [&](const Tensors& t) { return Tensors{at::cross_entropy_loss(at::mm(t[0], t[1].t()), labels)}; },
                   {random({150, 12}), random({vocabulary, 12})}, GetParam());
  }
}

// There are so many tokens that every device processes them in several chunks. Some tokens are ignored (label -100).
// The result of a token must not depend on the chunk to which it belongs.
TEST_P(Fused, LinearCrossEntropy_MatchesReferenceOverSeveralChunks) {
  at::manual_seed(10);
  const int64_t tokens = kOnGpu ? 5000 : 300, vocabulary = kOnGpu ? 50257 : 30001;
  const at::Tensor hidden = random({tokens, 16}).to(GetParam()), weight = random({vocabulary, 16}).to(GetParam());
  at::Tensor labels = here(at::randint(vocabulary, {tokens}, at::kLong));
  labels.slice(0, 0, 50).copy_(at::mm(hidden.slice(0, 0, 50).to(at::kDouble), weight.t().to(at::kDouble)).argmax(-1));
  labels.slice(0, 0, tokens, 7).fill_(-1);
  const at::Tensor h = hidden.to(at::kDouble).set_requires_grad(true),
                   w = weight.to(at::kDouble).set_requires_grad(true);
  const at::Tensor h0 = hidden.detach().set_requires_grad(true), w0 = weight.detach().set_requires_grad(true);
  const auto [loss, log_prob, correct] = linear_cross_entropy(h0, w0, labels, -1);
  const at::Tensor all = at::log_softmax(at::mm(h, w.t()), -1), counted = labels.ne(-1);
  const at::Tensor chosen = all.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1) * counted;
  const at::Tensor truth = -chosen.sum() / counted.sum();
  EXPECT_NEAR(loss.item<double>(), truth.item<double>(), 1e-5 * truth.item<double>());
  EXPECT_LE(error(log_prob, chosen.detach()), 1e-6);
  EXPECT_TRUE(at::equal(correct, all.argmax(-1).eq(labels)));
  const double scale = GetParam() == at::kHalf ? 65536 : 1;  // simulates a gradient scaler
  const Tensors found = torch::autograd::grad({loss * scale}, {h0, w0});
  const Tensors expected = torch::autograd::grad({truth * scale}, {h, w});
  const double rounding = GetParam() == at::kFloat ? 0x1p-18 : GetParam() == at::kHalf ? 0x1p-10 : 0x1p-7;
  for (size_t n = 0; n < 2; ++n) EXPECT_LE(error(found[n], expected[n]), rounding) << n;
}

// Tests two kinds of difficult logits: many equal logits, whose exponentials a simple fp32 loop would add with a
// systematic rounding error, and logits of up to 1e4. The logits are exact products of the inputs, so that all measured
// errors are errors of the operator.
TEST(FusedValues, LinearCrossEntropy_IsAccurateForLargeVocabulariesAndLogits) {
  constexpr int64_t kVocabulary = 262144;
  at::manual_seed(11);
  const at::Tensor spread = here(at::rand({kVocabulary}) * 2 - 1);
  for (const double scale : {0.0, 0.125, 1.0, 16.0, 8192.0}) {
    for (const double equal : {0.0, -0.3, -1.2, -5.0}) {
      at::Tensor logits = spread * scale + equal;
      logits.slice(0, 0, 1).fill_(scale);
      const at::Tensor weight = at::stack({logits, at::zeros_like(logits)}, 1).set_requires_grad(true);
      const at::Tensor hidden = here(at::tensor({1.0f, 0.0f}).repeat({3, 1})).set_requires_grad(true);
      const at::Tensor labels = here(at::tensor({int64_t{0}, int64_t{1}, kVocabulary - 1}));
      const auto [loss, log_prob, correct] = linear_cross_entropy(hidden, weight, labels);
      const at::Tensor all = at::log_softmax(logits.to(at::kDouble), 0), truth = all.index_select(0, labels);
      const at::Tensor size = truth.abs().clamp_min(1);
      EXPECT_LE(((log_prob - truth) / size).abs().max().item<double>(), 0x1p-20) << scale << " " << equal;
      EXPECT_NEAR(loss.item<double>(), -truth.mean().item<double>(), 0x1p-20 * size.max().item<double>());
      // All hidden states are (1, 0). The gradient of the first column of the weight is therefore the mean over the
      // tokens of softmax minus the one-hot vector of the label.
      const at::Tensor found = torch::autograd::grad({loss}, {weight})[0].select(1, 0).to(at::kDouble);
      at::Tensor expected = all.exp();
      expected.index_add_(0, labels, at::full({3}, -1 / 3., expected.options()));
      EXPECT_LE((found - expected).abs().max().item<double>(), 0x1p-23) << scale << " " << equal;
      EXPECT_LE(std::abs(found.sum().item<double>()), 0x1p-20) << scale << " " << equal;
    }
  }
}

std::vector<at::ScalarType> types() {
  std::vector<at::ScalarType> list{at::kFloat, at::kBFloat16};
  if (kOnGpu) list.push_back(at::kHalf);
  return list;
}
INSTANTIATE_TEST_SUITE_P(Types, Fused, testing::ValuesIn(types()),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(FusedValues, LinearCrossEntropy_ReportsPerTokenResults) {
  const at::Tensor hidden = here(at::eye(3)), weight = here(at::eye(3) * 4);
  const at::Tensor labels = here(at::tensor({0L, 2L, -100L}));
  const auto [loss, log_prob, correct] = linear_cross_entropy(hidden, weight, labels);
  const at::Tensor expected = at::log_softmax(weight, -1);
  EXPECT_FLOAT_EQ(log_prob[0].item<float>(), expected[0][0].item<float>());
  EXPECT_FLOAT_EQ(log_prob[1].item<float>(), expected[1][2].item<float>());
  EXPECT_EQ(log_prob[2].item<float>(), 0);
  EXPECT_TRUE(correct[0].item<bool>());
  EXPECT_FALSE(correct[1].item<bool>());
  EXPECT_FALSE(correct[2].item<bool>());
}

// On a GPU, an invalid label stops the process: the message is printed at the next synchronization of the host, and the
// process can no longer use CUDA.
TEST(FusedDeathTest, LabelOutsideVocabulary_IsAnError) {
  const auto outcome = [](int64_t label) {
    return test::torch_error_of([&] {
      std::get<0>(linear_cross_entropy(here(at::eye(3)), here(at::eye(3)), here(at::tensor({0L, label, 1L}))))
          .item<float>();
    });
  };
  if (!kOnGpu) {
    EXPECT_THAT(outcome(3), Names({"lazy::linear_cross_entropy", "labels", 0, 2, 3, 1}));
    EXPECT_THAT(outcome(-1), Names({"lazy::linear_cross_entropy", "labels", 0, 2, -1, 1}));
    return;
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(outcome(3).empty() ? 0 : 3), testing::ExitedWithCode(3),
              "lazy::linear_cross_entropy: .*labels.* 0 .* 2 .*-100");
}

// Checks the errors of all operators that read several tensors.
TEST(FusedValues, InvalidArguments_AreNamedInError) {
  const at::Tensor x = random({4, 8}), w = random({8});
  EXPECT_THAT(test::torch_error_of([&] { rms_norm(x, random({7}), 1e-6); }),
              IsMessage("lazy::rms_norm: expected weight of shape (8), received [7]"));
  EXPECT_THAT(test::torch_error_of([&] {
                add_rms_norm(x, random({4, 7}), w, 1e-6);
              }),
              Names({"lazy::add_rms_norm", "residual", "x", std::string("[4, 8]"), std::string("[4, 7]")}));
  EXPECT_THAT(test::torch_error_of([&] { swiglu(x, x.to(at::kDouble)); }),
              Names({"lazy::swiglu", "up", "gate", std::string("[4, 8]"), "Float", "Double"}));
  EXPECT_THAT(test::torch_error_of([&] { swiglu_halves_backward(x, x, true); }),
              Names({"lazy::swiglu_halves_backward", "gate_up", std::string("[4, 16]"), std::string("[4, 8]")}));
  EXPECT_THAT(test::torch_error_of([&] { rms_norm(x.to(at::kDouble), w, 1e-6); }),
              Names({"lazy::rms_norm", "float32", "bfloat16", "Double"}));
  if (!kOnGpu) {
    EXPECT_THAT(test::torch_error_of([&] { swiglu(x.to(at::kHalf), x.to(at::kHalf)); }),
                Names({"lazy::swiglu", "float32", "bfloat16", "Half"}));
    return;
  }
  EXPECT_THAT(test::torch_error_of([&] { rms_norm(x, w.cpu(), 1e-6); }),
              Names({"lazy::rms_norm", "weight", "cuda:0", "cpu"}));
  EXPECT_THAT(test::torch_error_of([&] {
                linear_cross_entropy(x, random({5, 8}), at::zeros({4}, at::kLong));
              }),
              Names({"lazy::linear_cross_entropy", "labels", "cuda:0", "cpu"}));
}

TEST(FusedValues, Autocast_CastsLinearCrossEntropy) {
  const at::Tensor hidden = random({7, 12}), weight = random({50, 12}), labels = here(at::randint(50, {7}, at::kLong));
  const at::ScalarType low = at::autocast::get_autocast_dtype(kDevice.type());
  const at::Tensor expected = std::get<0>(linear_cross_entropy(hidden.to(low), weight.to(low), labels));
  at::autocast::set_autocast_enabled(kDevice.type(), true);
  const at::Tensor under = std::get<0>(linear_cross_entropy(hidden, weight, labels));
  at::autocast::set_autocast_enabled(kDevice.type(), false);
  at::autocast::clear_cache();
  EXPECT_TRUE(at::equal(expected, under));
}

// The inputs have different types, as in a model: bf16 from a projection and fp32 from a cache. Autocast must convert
// them to one type.
TEST(FusedValues, Autocast_CastsAttention) {
  const at::Tensor q = random({1, 9, 2, 16}), k = random({1, 9, 2, 16}), v = random({1, 9, 2, 16});
  const at::Tensor tau = here(at::full({2}, -1.0));
  const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice.type());
  const auto low = [&](const at::Tensor& t) { return t.to(type); };
  const at::Tensor expected = std::get<0>(attention(low(q), low(k), low(v), {}, tau, {}));
  at::autocast::set_autocast_enabled(kDevice.type(), true);
  const at::Tensor found = std::get<0>(attention(low(q), k, v, {}, tau, {}));
  at::autocast::set_autocast_enabled(kDevice.type(), false);
  at::autocast::clear_cache();
  EXPECT_EQ(found.scalar_type(), type);
  EXPECT_TRUE(at::equal(found, expected));
}

TEST(FusedValues, InvalidRopeArguments_AreNamedInError) {
  const at::Tensor x = random({2, 5, 3, 16});
  auto refusal = [&](double base, int64_t offset, const std::function<void(RopeOptions&)>& change) {
    RopeOptions options;
    change(options);
    return test::torch_error_of([&] { rope(x, base, offset, options); });
  };
  const auto none = [](RopeOptions&) {};
  EXPECT_THAT(refusal(1e4, -1, none), Names({"lazy::rope", "offset", 0, -1}));
  EXPECT_THAT(refusal(0.5, 0, none), Names({"lazy::rope", "base", 1, "0.5"}));
  EXPECT_THAT(refusal(1e4, 0, [](RopeOptions& o) { o.rotary_dim = 18; }),
              Names({"lazy::rope", "rotary_dim", 2, "head_dim", 16, 18}));
  EXPECT_THAT(refusal(1e4, 0, [](RopeOptions& o) { o.scaling.type = "ntk"; }),
              Names({"lazy::rope", "scaling", "none", "linear", "llama3", "yarn", "longrope", "ntk"}));
  const auto longrope = [](std::vector<double> factors, int64_t original = 64) {
    return [=](RopeOptions& o) {
      o.scaling = {.type = "longrope", .factor = 2, .original_length = original, .pair_factors = factors};
    };
  };
  EXPECT_THAT(refusal(1e4, 0, longrope({})), Names({"lazy::rope", "pair_factors", 8, 0}));
  EXPECT_THAT(refusal(1e4, 0, longrope({1, 1, 1})), Names({"lazy::rope", "pair_factors", 8, 3}));
  EXPECT_THAT(refusal(1e4, 0, longrope({1, 1, 1, 1, 1, 1, 1, -2})), Names({"lazy::rope", "pair_factors", 0, -2}));
  EXPECT_THAT(refusal(1e4, 0, longrope({1, 1, 1, 1, 1, 1, 1, 1}, 1)), Names({"lazy::rope", "original_length", 1}));
  EXPECT_THAT(refusal(1e4, 0,
                      [](RopeOptions& o) {
                        o.scaling.pair_factors = {1, 1};
                      }),
              Names({"lazy::rope", "pair_factors", 0, 2}));
  EXPECT_THAT(refusal(1e4, 0,
                      [](RopeOptions& o) {
                        o.scaling = {"yarn", 4};
                      }),
              Names({"lazy::rope", "original_length", 0, "yarn"}));
  EXPECT_THAT(refusal(1e4, 0,
                      [](RopeOptions& o) {
                        o.positions = here(at::tensor({0L, 1L}));
                      }),
              Names({"lazy::rope", "positions", "length", "batch", "[2]", "x", std::string("[2, 5, 3, 16]")}));
  EXPECT_THAT(refusal(1e4, int64_t{1} << 40, none), Names({"lazy::rope", "positions"}));
  const auto below_zero = [](RopeOptions& o) { o.positions = here(at::tensor({0L, 1L, -3L, 2L, 3L})); };
  if (!kOnGpu) {
    EXPECT_THAT(refusal(1e4, 0, below_zero), Names({"lazy::rope", "positions", 0, -3}));
    return;
  }
  RopeOptions options;
  below_zero(options);
  const at::Tensor missing = at::isnan(rope(x, 1e4, 0, options)).flatten(2).all(-1).any(0).cpu();
  EXPECT_TRUE(at::equal(missing, at::arange(5).eq(2)));
}

TEST(FusedValues, SecondDerivative_Throws) {
  const at::Tensor labels = here(at::tensor({1L, 0L}));
  const std::vector<std::pair<const char*, Function>> operators{
      {"rms_norm", [](const Tensors& t) { return Tensors{rms_norm(t[0], t[1][0], 1e-6)}; }},
      {"swiglu", [](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; }},
      {"linear_cross_entropy",
       [&](const Tensors& t) { return Tensors{std::get<0>(linear_cross_entropy(t[0], t[1], labels))}; }}};
  for (const auto& [name, function] : operators) {
    SCOPED_TRACE(name);
    const Tensors leaves{random({2, 8}).set_requires_grad(true), random({2, 8}).set_requires_grad(true)};
    const Tensors first =
        torch::autograd::grad({function(leaves)[0].square().sum()}, leaves, {}, {}, /*create_graph=*/true);
    const auto second = [&] { torch::autograd::grad({first[0].sum()}, leaves, {}, {}, false, /*allow_unused=*/true); };
    EXPECT_THAT(test::torch_error_of(second), Names({"lazy::" + std::string(name) + "_backward"}));
  }
}

// Every operator with a CPU kernel must also handle CUDA tensors, at least by throwing an error of this project.
TEST(FusedValues, EveryCpuOperator_HandlesCudaTensors) {
  int seen = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("lazy::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    ++seen;
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << name.name;
  }
  EXPECT_GT(seen, 8);
}

}  // namespace

}  // namespace lazy::ops
