// A task that a softmax head cannot solve without a sink: trigger-conditional averaging (Ran-Milo 2026, arXiv
// 2603.11487). At the position of the trigger, the target output is the mean of all preceding content; at every other
// position it is zero.
//
// A token is a vector [is BOS, is the trigger, is content, content (n)]. BOS is the first token. The trigger occurs
// once, at a random position in the second half of the sequence. All other tokens are content, drawn from N(0, 1). The
// model is one causal head without positions, MLP, norm or residual: y_t = gate_t (sum_j w_tj x_j W_V) W_O.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/stop.h"
#include "model/config.h"
#include "ops/attention_weights.h"
#include "repro/experiments/toys.h"
#include "train/optimizer.h"

namespace lazy::repro {
namespace {

constexpr int64_t kMarks = 3, kHeldOutSamples = 512;
constexpr int64_t kMaps = 4;  // number of held-out sequences whose attention maps are recorded

struct TriggerSequences {
  at::Tensor x;        // (count, length, kMarks + n)
  at::Tensor target;   // (count, length, n)
  at::Tensor trigger;  // (count) int64: position of the trigger
};

TriggerSequences sample(int64_t count, int64_t length, int64_t n, at::Generator generator) {
  const auto whole = at::TensorOptions().dtype(at::kLong);
  const at::Tensor position = at::arange(length, whole).unsqueeze(0);
  const at::Tensor trigger = at::randint(length / 2, length, {count}, generator, whole);
  const at::Tensor is_bos = position.eq(0).expand({count, length}), is_trigger = position.eq(trigger.unsqueeze(1));
  const at::Tensor is_content = is_bos.logical_or(is_trigger).logical_not();
  const at::Tensor content =
      at::randn({count, length, n}, generator, at::TensorOptions().dtype(at::kFloat)) * is_content.unsqueeze(2);
  const at::Tensor mean = content.cumsum(1) / is_content.cumsum(1).clamp_min(1).unsqueeze(2);
  const at::Tensor marks = at::stack({is_bos, is_trigger, is_content}, 2).to(at::kFloat);
  return {at::cat({marks, content}, 2), mean * is_trigger.unsqueeze(2), trigger};
}

class Head {
 public:
  Head(const Json& s, int64_t n, uint64_t seed) : width_(s.at("width").get<int64_t>()) {
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    const auto add = [&](const char* name, int64_t rows, int64_t columns) {
      parameters_.emplace_back(name, (at::randn({rows, columns}, generator, at::TensorOptions().dtype(at::kFloat)) /
                                      std::sqrt(static_cast<double>(rows)))
                                         .requires_grad_(true));
    };
    for (const char* name : {"query", "key", "value"}) add(name, kMarks + n, width_);
    add("output", width_, n);
    gated_ = s.at("gate").get<bool>();
    if (gated_) add("gate", kMarks + n, 1);
    const auto normalizer = s.at("normalizer").get<std::string>();
    relu_ = normalizer == "relu";
    if (relu_) return;
    const auto known = kNormalizerNames.find(normalizer);
    if (!known) fail("repro", "trigger: expected relu or the name of a normalizer, found '{}'", normalizer);
    terms_.options.normalizer = normalizer;
    if (kernels::traits(*known).takes_sink) terms_.options.sink = at::zeros({1});
    if (!kernels::traits(*known).takes_tau) return;
    terms_.tau = at::full({1}, -1.0, at::kFloat).requires_grad_(true);
    parameters_.emplace_back("tau", terms_.tau);
  }

  // Returns y (count, length, n) and the attention weights (count, length, length).
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) const {
    const auto product = [&](size_t of) { return at::matmul(x, parameters_[of].second); };
    const at::Tensor q = product(0).unsqueeze(2), k = product(1).unsqueeze(2);
    const at::Tensor scores = ops::attention_scores(q, k, terms_);
    // ReLU attention divides by the number of visible keys, so that a weight is part of a mean over the keys.
    const at::Tensor visible = at::arange(1, x.size(1) + 1, x.options()).unsqueeze(1);
    const at::Tensor weights =
        (relu_ ? at::relu(scores) / visible : ops::normalized_weights(scores, terms_)).squeeze(1);
    at::Tensor heads = at::matmul(weights, product(2));
    if (gated_) heads = heads * at::sigmoid(product(4));
    return {at::matmul(heads, parameters_[3].second), weights};
  }

  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }

 private:
  int64_t width_;
  bool gated_ = false, relu_ = false;
  ops::AttentionTerms terms_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

// Returns the squared error of each sequence divided by the mean squared target at the trigger, which is 1 for a model
// that always outputs zero.
at::Tensor errors(const at::Tensor& y, const TriggerSequences& s) {
  return (y - s.target).square().sum({1, 2}) / s.target.square().sum({1, 2}).mean();
}

}  // namespace

Json trigger_experiment(const ExperimentInputs& run) {
  const Json& s = run.settings;
  const auto length = s.at("length").get<int64_t>(), n = s.at("content").get<int64_t>(),
             steps = s.at("steps").get<int64_t>();
  const auto seed = s.at("seed").get<uint64_t>();
  const Head head(s, n, seed);
  train::AdamW optimizer(head.parameters(), {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0});
  const at::Generator generator = at::detail::createCPUGenerator(1000 + seed);
  const TriggerSequences held = sample(kHeldOutSamples, length, n, at::detail::createCPUGenerator(99));
  Json out{{"curve", Json::array()}};
  for (int64_t step = 0; step <= steps; ++step) {
    if (step % std::max<int64_t>(1, steps / 50) == 0 || step == steps) {
      const at::NoGradGuard no_grad;
      out["curve"].push_back(
          {{"step", step}, {"error", errors(head.forward(held.x).first, held).mean().item<double>()}});
    }
    if (step == steps) break;
    end_if_stopped("repro");
    const TriggerSequences batch = sample(s.at("batch").get<int64_t>(), length, n, generator);
    errors(head.forward(batch.x).first, batch).mean().backward();
    optimizer.step(s.at("rate").get<double>(), 1, 0);
  }
  const at::NoGradGuard no_grad;
  const auto [y, weights] = head.forward(held.x);
  const at::Tensor position = at::arange(1, length).unsqueeze(0), on_bos = weights.select(2, 0).slice(1, 1),
                   all = weights.abs().sum(2).slice(1, 1), at_trigger = position.eq(held.trigger.unsqueeze(1));
  const at::Tensor others = at_trigger.logical_not();
  // Averages a value over the content queries of each sequence.
  const auto content_mean = [&](const at::Tensor& t) { return (t * others).sum(1) / others.sum(1); };
  out["errors"] = numbers_of(errors(y, held));
  out["to_bos"] = numbers_of(content_mean(on_bos));
  out["to_bos_at_trigger"] = numbers_of((on_bos * at_trigger).sum(1));
  out["total"] = numbers_of(content_mean(all));
  out["uniform_share"] = at::arange(2, length + 1, at::kDouble).reciprocal().mean().item<double>();
  out["triggers"] = Json::array();
  out["maps"] = Json::array();
  for (int64_t i = 0; i < kMaps; ++i) {
    out["triggers"].push_back(held.trigger[i].item<int64_t>());
    out["maps"].push_back(rows_of(weights[i]));
  }
  return out;
}

}  // namespace lazy::repro
