// Tests of linear layers in fp8 against float64 products of the values that quantize_fp8 stores.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/blocks/linear.h"
#include "model/forward_options.h"
#include "model/language_model.h"

namespace lazy {
namespace {

at::Tensor stored(at::TensorList parts, at::ScalarType type, at::ScalarType as) {
  const ops::Fp8Matrix m = ops::quantize_fp8(parts, type, true, false);
  return m.rows.to(as) * m.scale.to(as);
}

double error(const at::Tensor& x, const at::Tensor& truth) {
  return ((x.to(at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

TEST(Fp8, LinearAndGradients_MatchQuantizedReference) {
  at::manual_seed(1);
  const Linear linear(48, {64, 16}, at::kCPU);
  for (const at::Tensor& part : linear.parts()) part.detach().normal_();
  const at::Tensor x = at::randn({3, 32, 48}).to(at::kBFloat16).requires_grad_(true);
  const std::vector<at::Tensor> d{at::randn({3, 32, 64}).to(at::kBFloat16), at::randn({3, 32, 16}).to(at::kBFloat16)};
  linear.set_fp8(true);
  const auto y = linear.forward(x);
  std::vector<at::Tensor> wanted{x, linear.parts()[0], linear.parts()[1]};
  auto found = torch::autograd::grad({y[0], y[1]}, wanted, d);
  found.insert(found.end(), {y[0], y[1]});
  // Returns the reference: the same matrix products in float64, or in fp32 with results that are rounded to the result
  // dtype.
  const auto expected = [&](at::ScalarType as) {
    const at::Tensor W = at::cat({linear.parts()[0], linear.parts()[1]}, 0).detach().to(at::kBFloat16);
    const at::Tensor flat = x.detach().view({96, 48});
    const at::Tensor qx = stored({flat}, at::kFloat8_e4m3fn, as), qW = stored({W}, at::kFloat8_e4m3fn, as);
    const at::Tensor qd = stored({d[0].view({96, 64}), d[1].view({96, 16})}, at::kFloat8_e5m2, as);
    const at::Tensor dW = at::mm(qd.t(), qx), all = at::mm(qx, qW.t());
    return std::vector<at::Tensor>{at::mm(qd, qW).view({3, 32, 48}), dW.narrow(0, 0, 64), dW.narrow(0, 64, 16),
                                   all.narrow(1, 0, 64).reshape({3, 32, 64}),
                                   all.narrow(1, 64, 16).reshape({3, 32, 16})};
  };
  const auto truth = expected(at::kDouble), plain = expected(at::kFloat);
  for (size_t i = 0; i < truth.size(); ++i) {
    const at::ScalarType type = found[i].scalar_type();
    EXPECT_EQ(type, i == 1 || i == 2 ? at::kFloat : at::kBFloat16);
    const double rounding = type == at::kFloat ? 0x1p-24 : 0x1p-9;
    EXPECT_LE(error(found[i], truth[i]), 2 * error(plain[i].to(type), truth[i]) + rounding) << i;
  }
  // The fp8 result must differ from the bf16 result.
  linear.set_fp8(false);
  EXPECT_GT(error(linear.forward(x)[0].detach(), truth[3]), 0.01);
}

TEST(Fp8, OtherSizes_StayInBFloat16) {
  at::manual_seed(2);
  const Linear linear(48, {64}, at::kCPU);
  linear.parts()[0].detach().normal_();
  for (const auto& [rows, type] : {std::pair{17, at::kBFloat16}, {32, at::kFloat}}) {
    const at::Tensor x = at::randn({rows, 48}).to(type);
    const at::Tensor before = linear.forward(x)[0].detach();
    linear.set_fp8(true);
    EXPECT_TRUE(at::equal(linear.forward(x)[0].detach(), before)) << rows;
    linear.set_fp8(false);
  }
}

std::vector<at::Tensor> gradients(LanguageModel& model, const at::Tensor& ids) {
  std::vector<at::Tensor> out;
  model.loss(ids, ids).backward();
  for (const auto& [name, leaf] : model.parameters()) {
    out.push_back(leaf.grad());
    leaf.mutable_grad() = at::Tensor();
  }
  return out;
}

TEST(Fp8, RecomputedModels_HaveSameGradients) {
  ModelConfig c{.vocab_size = 97,
                .hidden_size = 48,
                .num_layers = 2,
                .max_length = 64,
                .attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16},
                .mlp = {.intermediate_size = 80}};
  LanguageModel model(c, 3);
  model.set_compute_dtype(at::kBFloat16);
  const at::Tensor ids = at::randint(0, 97, {2, 32}, at::kLong);
  const auto plain = gradients(model, ids);
  model.set_fp8(true);
  const auto once = gradients(model, ids);
  for (const auto checkpointing : {Checkpointing::mlp, Checkpointing::attention, Checkpointing::full}) {
    model.set_checkpointing(checkpointing);
    const auto again = gradients(model, ids);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << i;
  }
  bool all_equal = true;
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_LT(error(once[i], plain[i].to(at::kDouble)), 0.5) << i;
    all_equal = all_equal && at::equal(once[i], plain[i]);
  }
  EXPECT_FALSE(all_equal);
  at::NoGradGuard off;
  model.set_checkpointing(Checkpointing::none);
  EXPECT_TRUE(std::isfinite(model.loss(ids, ids).item<double>()));
}

}  // namespace
}  // namespace lazy
