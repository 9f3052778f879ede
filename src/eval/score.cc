#include "eval/score.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/progress.h"
#include "core/stop.h"

namespace lazy::eval {

std::vector<Score> score(LanguageModel& model, const std::vector<Window>& windows, const ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t vocabulary = model.config().vocab_size;
  uint64_t tokens = 0;
  for (const Window& w : windows) {
    if (w.targets.empty() || w.input.size() < w.targets.size()) {
      fail("eval", "window: expected 1 to {} targets, found {}", w.input.size(), w.targets.size());
    }
    for (const auto* ids : {&w.input, &w.targets}) {
      for (int32_t id : *ids) {
        if (id < 0 || id >= vocabulary) fail("eval", "token id {}: expected 0 to {} (the model's vocabulary)", id, vocabulary - 1);
      }
    }
    tokens += w.input.size();
  }
  // Longest first: what does not fit into memory fails at once, and the time left is never underestimated.
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return windows[a].input.size() > windows[b].input.size(); });

  std::vector<Score> scores(windows.size());
  std::unique_ptr<Progress> progress;
  if (!options.title.empty()) progress = std::make_unique<Progress>(options.title, tokens, "tokens");
  uint64_t done = 0;
  const auto batch_size = static_cast<size_t>(std::max<int64_t>(1, options.batch_size));
  for (size_t begin = 0; begin < order.size(); begin += batch_size) {
    if (stop_requested()) fail_run("eval", "stopped by signal {}", stop_signal());
    const size_t count = std::min(batch_size, order.size() - begin);
    const auto length = static_cast<int64_t>(windows[order[begin]].input.size());
    // Padding stands on the right, where causal attention never sees it from a real token.
    at::Tensor ids = at::zeros({static_cast<int64_t>(count), length}, at::kLong);
    at::Tensor labels = at::full({static_cast<int64_t>(count), length}, -100, at::kLong);
    for (size_t row = 0; row < count; ++row) {
      const Window& w = windows[order[begin + row]];
      std::copy(w.input.begin(), w.input.end(), ids[static_cast<int64_t>(row)].data_ptr<int64_t>());
      std::copy(w.targets.begin(), w.targets.end(),
                labels[static_cast<int64_t>(row)].data_ptr<int64_t>() + (w.input.size() - w.targets.size()));
    }
    KVCache cache{.streaming = options.cache};
    auto [likelihood, best] = model.log_likelihood(ids.to(model.device()), labels.to(model.device()),
                                                   {.cache = options.cache ? &cache : nullptr});
    likelihood = likelihood.to(at::kCPU).contiguous();
    best = best.to(at::kCPU).contiguous();
    for (size_t row = 0; row < count; ++row) {
      const Window& w = windows[order[begin + row]];
      Score& result = scores[order[begin + row]];
      const auto r = static_cast<int64_t>(row), first = static_cast<int64_t>(w.input.size() - w.targets.size());
      for (int64_t t = first; t < static_cast<int64_t>(w.input.size()); ++t) {
        result.log_likelihood += likelihood.data_ptr<float>()[r * length + t];
        result.greedy = result.greedy && best.data_ptr<bool>()[r * length + t];
      }
      done += w.input.size();
    }
    if (progress) progress->update(done);
  }
  if (progress) progress->finish();
  return scores;
}

std::vector<Score> score(LanguageModel& model, const std::vector<Request>& requests, int64_t max_length, const ScoreOptions& options) {
  std::vector<Window> windows;
  for (const Request& request : requests) windows.push_back(window_of(request, max_length));
  return score(model, windows, options);
}

}  // namespace lazy::eval
