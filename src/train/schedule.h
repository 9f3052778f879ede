// The learning rate of each optimizer step: linear warm-up from 0, then decay to a fraction of the peak.
//
//   t < w:   rate = lr t / w
//   t >= w:  rate = lr (m + (1 - m) f(x)),  x = (t - w) / (T - w)
//   cosine: f(x) = (1 + cos(pi x)) / 2      linear: f(x) = 1 - x
//
// t counts the optimizer steps already taken: with a warm-up the first step has rate 0.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace lazy {
class Config;
}

namespace lazy::train {

struct Schedule {
  enum class Decay { cosine, linear };
  double peak = 4e-4;        // lr
  int64_t warmup_steps = 0;  // w, 0 <= w <= steps
  int64_t steps = 1;         // T
  double min_factor = 0.1;   // m, the fraction of the peak that is left at t = T
  Decay decay = Decay::cosine;

  // Reads [lr_scheduler]. `peak`: optimizer.lr, `steps`: training.steps.
  static Schedule from_config(Config& config, double peak, int64_t steps);
  // Adds what a resumed run compares with its checkpoint, "lr_scheduler.KEY".
  void add_settings(nlohmann::ordered_json& settings) const;

  double rate(int64_t steps_taken) const;
};

}  // namespace lazy::train
