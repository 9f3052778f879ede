#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "model/language_model.h"
#include "ops/load_cuda.h"
#include "support/error_of.h"

namespace lazy::train {
namespace {

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, double scale = 1) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator, at::kFloat) * scale;
}

AdamW::Parameters parameters(uint64_t seed) {
  AdamW::Parameters out{{"model.layers.0.self_attn.q_proj.weight", random_tensor({33, 17}, seed)},
                        {"model.layers.0.input_layernorm.weight", random_tensor({17}, seed + 1)}};
  for (auto& [name, tensor] : out) tensor.requires_grad_();
  return out;
}

void set_gradients(const AdamW::Parameters& parameters, uint64_t seed, double scale) {
  for (const auto& [name, tensor] : parameters) {
    at::Tensor handle = tensor;
    handle.mutable_grad() = random_tensor(tensor.sizes(), seed++, scale);
  }
}

// Reference implementation of AdamW in float64, which updates one element at a time.
struct Reference {
  std::vector<double> w, m, v;
  explicit Reference(const at::Tensor& tensor) : m(tensor.numel()), v(tensor.numel()) {
    const at::Tensor flat = tensor.detach().contiguous();
    w.assign(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  void step(const at::Tensor& gradient, const AdamWOptions& o, double decay, double lr, double clip, int t) {
    const float* g = gradient.data_ptr<float>();
    for (size_t i = 0; i < w.size(); ++i) {
      const double x = g[i] * clip;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * x;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * x * x;
      const double m_hat = m[i] / (1 - std::pow(o.beta1, t)), v_hat = v[i] / (1 - std::pow(o.beta2, t));
      w[i] -= lr * decay * w[i] + lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

// Compares the fp32 optimizer with the float64 reference. Per step, two errors are allowed: adding an update of about
// lr rounds the weight by a few units in its last place, and each of about twelve operations that compute the update
// adds half a unit in the last place of lr.
TEST(AdamW, Update_MatchesReferenceImplementation) {
  const AdamWOptions options{.lr = 1e-2, .weight_decay = 0.1};
  auto p = parameters(5);
  AdamW optimizer(p, options, [&](const std::string& name) { return name == p[0].first; });
  std::vector<Reference> references{Reference(p[0].second), Reference(p[1].second)};
  for (int t = 1; t <= 20; ++t) {
    const double scale = t % 2 ? 1e-3 : 10;  // gradients are clipped in even steps only
    set_gradients(p, 100 * t, scale);
    double square = 0;
    for (const auto& [name, tensor] : p) square += tensor.grad().to(at::kDouble).square().sum().item<double>();
    const double norm = optimizer.gradient_norm();
    EXPECT_NEAR(norm, std::sqrt(square), 8 * std::numeric_limits<float>::epsilon() * std::sqrt(square));
    const double clip = norm > 1.0 ? 1.0 / norm : 1.0;
    EXPECT_EQ(norm > 1.0, t % 2 == 0);
    const double lr = options.lr * t / 20;
    references[0].step(p[0].second.grad(), options, options.weight_decay, lr, clip, t);
    references[1].step(p[1].second.grad(), options, 0, lr, clip, t);
    optimizer.step(lr, norm, 1.0);
    for (size_t k = 0; k < p.size(); ++k) {
      EXPECT_FALSE(p[k].second.grad().defined());
      const float* w = p[k].second.data_ptr<float>();
      for (size_t i = 0; i < references[k].w.size(); ++i) {
        const double allowed =
            t * std::numeric_limits<float>::epsilon() * (2 * std::abs(references[k].w[i]) + 12 * options.lr);
        ASSERT_NEAR(w[i], references[k].w[i], allowed) << "step " << t << " tensor " << k << " element " << i;
      }
    }
  }
  EXPECT_EQ(optimizer.steps_taken(), 20);
}

TEST(AdamW, MissingGradient_CountsAsZeroAndFrozenParametersAreSkipped) {
  auto p = parameters(5);
  p.emplace_back("frozen.weight", random_tensor({3}, 1));
  const at::Tensor frozen = p[2].second.clone(), norm_weight = p[1].second.detach().clone();
  AdamW optimizer(p, {}, [&](const std::string& name) { return name == p[0].first; });
  set_gradients({p[0]}, 1, 1);
  optimizer.step(0.1, optimizer.gradient_norm(), 0);
  EXPECT_TRUE(at::equal(p[2].second, frozen));
  EXPECT_TRUE(at::equal(p[1].second, norm_weight));  // unchanged, because it has neither a gradient nor weight decay
  EXPECT_EQ(optimizer.state().size(), 1u + 2 * 2);
}

TEST(AdamW, LoadedState_ContinuesExactly) {
  auto p = parameters(5), q = parameters(5);
  AdamW straight(p, {}), first(q, {});
  const auto run = [](AdamW& optimizer, const AdamW::Parameters& over, int from, int to) {
    for (int t = from; t < to; ++t) {
      set_gradients(over, 7 * t, 1);
      optimizer.step(1e-3, optimizer.gradient_norm(), 1);
    }
  };
  run(straight, p, 0, 10);
  run(first, q, 0, 4);
  AdamW second(q, {});
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : first.state()) state[name] = tensor.clone();
  second.load_state(state, "optimizer.safetensors");
  run(second, q, 4, 10);
  for (size_t k = 0; k < p.size(); ++k) EXPECT_TRUE(at::equal(p[k].second, q[k].second));
}

std::string load_error(const std::map<std::string, at::Tensor>& state) {
  auto p = parameters(5);
  AdamW optimizer(p, {});
  return error_of([&] { optimizer.load_state(state, "optimizer.safetensors"); });
}

// The model caches copies of its weights in the compute dtype. An optimizer update must renew them.
TEST(AdamW, Update_RefreshesBf16Copies) {
  const ModelConfig config{.vocab_size = 61,
                           .hidden_size = 32,
                           .num_layers = 2,
                           .max_length = 32,
                           .attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
                           .mlp = {.intermediate_size = 48}};
  const char* name = std::getenv("LAZY_TEST_DEVICE");
  const at::Device device(name && std::string(name) == "cuda" ? at::kCUDA : at::kCPU);
  if (device.is_cuda()) ops::load_cuda();
  LanguageModel model(config, 1), fresh(config, 2);
  for (LanguageModel* m : {&model, &fresh}) {
    m->to(device);
    m->set_compute_dtype(at::kBFloat16);
  }
  AdamW optimizer(model.parameters(), AdamWOptions{.lr = 0.05});
  const at::Tensor ids = at::arange(2 * 32, at::TensorOptions(at::kLong).device(device)).remainder(61).view({2, 32});
  const auto without_gradients = [&](LanguageModel& m) {
    const at::NoGradGuard no_grad;
    return m.loss(ids, ids).item<double>();
  };
  const double before = without_gradients(model);
  for (int step = 0; step < 3; ++step) {
    model.loss(ids, ids).backward();
    optimizer.step(0.05, optimizer.gradient_norm(), 1.0);
  }
  {
    const at::NoGradGuard no_grad;
    for (size_t n = 0; n < model.parameters().size(); ++n) {
      at::Tensor to = fresh.parameters()[n].second;
      to.copy_(model.parameters()[n].second);
    }
  }
  EXPECT_EQ(without_gradients(model), without_gradients(fresh));
  EXPECT_LT(without_gradients(model), before);
}

TEST(AdamW, StateOfDifferentModel_IsAnError) {
  auto p = parameters(5);
  std::map<std::string, at::Tensor> good;
  const AdamW optimizer(p, {});
  for (const auto& [name, tensor] : optimizer.state()) good[name] = tensor;
  EXPECT_EQ(load_error(good), "");
  auto bad = good;
  bad.erase("exp_avg_sq.model.layers.0.input_layernorm.weight");
  EXPECT_THAT(load_error(bad), Names({"optimizer.safetensors", "exp_avg_sq.model.layers.0.input_layernorm.weight"}));
  bad = good;
  bad["exp_avg.model.layers.0.input_layernorm.weight"] = at::zeros({16});
  EXPECT_THAT(load_error(bad),
              IsMessage("checkpoint: optimizer.safetensors: exp_avg.model.layers.0.input_layernorm.weight: "
                        "expected Float [17], found Float [16]"));
  bad = good;
  bad["exp_avg.lm_head.weight"] = at::zeros({16});
  EXPECT_THAT(load_error(bad), Names({"optimizer.safetensors", "exp_avg.lm_head.weight"}));
  bad = good;
  bad["step"] = at::zeros({2});
  EXPECT_THAT(load_error(bad), Names({"optimizer.safetensors", "step", "int64"}));
}

}  // namespace
}  // namespace lazy::train
