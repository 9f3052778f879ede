// The model asked plainly: one window, the whole matrix of logits.
#pragma once
#include <ATen/ATen.h>

#include "eval/score.h"

namespace lazy::eval {

// log p of every target from the whole (length, vocabulary) matrix of logits, one window at a time, in float64.
inline Score plain_score(LanguageModel& model, const Window& w) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> ids(w.input.begin(), w.input.end());
  const at::Tensor input = at::tensor(ids, at::kLong).unsqueeze(0);
  const at::Tensor log_p = at::log_softmax(model.logits(model.forward(input).hidden).to(at::kDouble), -1)[0];
  Score result;
  for (size_t i = 0; i < w.targets.size(); ++i) {
    const auto row = log_p[static_cast<int64_t>(w.input.size() - w.targets.size() + i)];
    result.log_likelihood += row[w.targets[i]].item<double>();
    result.greedy = result.greedy && row.argmax().item<int64_t>() == w.targets[i];
  }
  return result;
}

}  // namespace lazy::eval
