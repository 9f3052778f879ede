#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "benchmarks/timing.h"
#include "core/error.h"
#include "eval/batch.h"
#include "eval/score.h"
#include "model/device.h"
#include "model/language_model.h"

namespace lazy::benchmarks {

namespace {

std::vector<eval::Window> questions(const EvalBenchmark& o) {
  std::mt19937 random(1);
  const auto ids = [&](int64_t around) {
    std::vector<int32_t> out(
        static_cast<size_t>(std::max<int64_t>(1, around / 2 + static_cast<int64_t>(random()) % (around + 1))));
    for (int32_t& id : out) id = static_cast<int32_t>(random() % static_cast<uint64_t>(o.model.vocab_size));
    return out;
  };
  std::vector<eval::Window> windows;
  for (int64_t q = 0; q < o.questions; ++q) {
    const auto context = ids(o.context);
    for (int64_t c = 0; c < o.choices; ++c) windows.push_back(eval::window_of({context, ids(o.choice)}, 1 << 20));
  }
  return windows;
}

// Scores the windows by the plain method: rows are sorted by descending length and padded to the longest row of their
// batch, and log-softmax is applied to the logits of all positions. Returns the log-likelihood of each window.
std::vector<double> plain(LanguageModel& model, const std::vector<eval::Window>& windows, int64_t batch) {
  const at::NoGradGuard guard;
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return windows[a].input.size() > windows[b].input.size(); });
  std::vector<double> out(windows.size());
  for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(batch)) {
    const size_t count = std::min(static_cast<size_t>(batch), order.size() - begin);
    at::Tensor ids =
        at::zeros({static_cast<int64_t>(count), static_cast<int64_t>(windows[order[begin]].input.size())}, at::kLong);
    for (size_t r = 0; r < count; ++r) {
      const auto& input = windows[order[begin + r]].input;
      std::copy(input.begin(), input.end(), ids[static_cast<int64_t>(r)].data_ptr<int64_t>());
    }
    const at::Tensor log_p = at::log_softmax(model.logits(model.forward(ids.to(model.device())).hidden), -1);
    for (size_t r = 0; r < count; ++r) {
      const eval::Window& w = windows[order[begin + r]];
      const std::vector<int64_t> targets(w.targets.begin(), w.targets.end());
      const auto n = static_cast<int64_t>(targets.size());
      const at::Tensor rows = log_p[static_cast<int64_t>(r)].narrow(0, static_cast<int64_t>(w.input.size()) - n, n);
      out[order[begin + r]] = rows.gather(1, at::tensor(targets).to(model.device()).unsqueeze(1)).sum().item<double>();
    }
  }
  return out;
}

}  // namespace

nlohmann::json run_eval(const EvalBenchmark& options) {
  EvalBenchmark o = options;
  o.device = resolve_device(o.device);
  o.dtype = resolve_dtype(o.dtype, o.device);
  const at::Device device = o.device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  LanguageModel model(o.model, 1);
  model.to(device);
  model.set_compute_dtype(o.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  const auto windows = questions(o);
  int64_t tokens = 0, computed = 0, scored = 0;
  for (const auto& w : windows)
    tokens += static_cast<int64_t>(w.input.size()), scored += static_cast<int64_t>(w.targets.size());
  for (const auto& group : eval::group_by_prefix(windows)) computed += group.computed;

  const auto expected = plain(model, windows, o.batch);
  const auto found = eval::score(model, windows, {0, ""});
  double worst = 0;
  for (size_t i = 0; i < windows.size(); ++i) worst = std::max(worst, std::abs(found[i].log_likelihood - expected[i]));
  // A log-likelihood is a sum of about `choice` terms of magnitude ln(vocabulary). The factors 8e-3 and 1e-5 are
  // generous upper bounds of the relative rounding errors in bf16 and fp32.
  const double bound = (o.dtype == "bf16" ? 8e-3 : 1e-5) * static_cast<double>(o.choice) *
                       std::log(static_cast<double>(o.model.vocab_size));
  if (!(worst < bound)) fail_run("bench", "log-likelihoods differ by {:.2e}, more than {:.2e}", worst, bound);

  const auto times = medians_ms(o.repeats, {[&] { plain(model, windows, o.batch); },
                                            [&] {
                                              eval::score(model, windows, {0, ""});
                                            }});
  const auto count = static_cast<double>(windows.size());
  fmt::print(
      "{}, {}, {}: {} questions with {} choices, {} tokens, of which {} are computed and {} are scored; largest "
      "difference of the log-likelihoods {:.1e}\n\n",
      o.name, o.device, o.dtype, o.questions, o.choices, tokens, computed, scored, worst);
  fmt::print("| method | ms | requests/s | speed / padded rows |\n|---|---:|---:|---:|\n");
  fmt::print("| padded rows, {} per batch, all logits | {:.0f} | {:.1f} | 1 |\n", o.batch, times[0],
             1e3 * count / times[0]);
  fmt::print("| packed, shared contexts, only scored logits | {:.0f} | {:.1f} | {:.2f} |\n", times[1],
             1e3 * count / times[1], times[0] / times[1]);
  return {{"model", o.name},
          {"device", o.device},
          {"dtype", o.dtype},
          {"questions", o.questions},
          {"choices", o.choices},
          {"tokens", tokens},
          {"computed_tokens", computed},
          {"scored_tokens", scored},
          {"largest_difference", worst},
          {"plain_ms", times[0]},
          {"packed_ms", times[1]},
          {"speedup", times[0] / times[1]}};
}

}  // namespace lazy::benchmarks
