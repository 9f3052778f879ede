// A scorer that computes scores by a rule instead of a model. For each target, the rule receives the same preceding
// tokens that a model would receive.
#pragma once
#include <functional>
#include <vector>

#include "eval/score.h"

namespace lazy::eval::length {

inline Scorer stub(std::function<TargetScore(const std::vector<int32_t>& before, int32_t target)> rule) {
  return [rule](const std::vector<Window>& windows, const std::string&) {
    std::vector<Score> scores;
    for (const Window& window : windows) {
      Score score;
      for (size_t t = 0; t < window.targets.size(); ++t) {
        const auto end = window.input.end() - static_cast<int64_t>(window.targets.size() - 1 - t);
        score.targets.push_back(rule({window.input.begin(), end}, window.targets[t]));
        score.log_likelihood += score.targets.back().log_likelihood;
        score.greedy = score.greedy && score.targets.back().greedy;
      }
      scores.push_back(score);
    }
    return scores;
  };
}

}  // namespace lazy::eval::length
