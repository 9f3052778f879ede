// The learning rate of each optimizer step: linear warm-up from 0, then decay to a fraction of the peak.
//
//   t < w:   rate = lr t / w
//   t >= w:  rate = lr (m + (1 - m) f(x)),  x = (t - w) / (T - w)
//
// t is the number of optimizer steps already taken, so the first step of a warm-up has rate 0. lr is the peak rate, w
// the number of warm-up steps, T the number of training steps, m the final fraction of the peak, and f the decay
// function.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy {
class Config;
}

namespace lazy::train {

struct Schedule {
  // The decay function f maps the fraction x of the steps after the warm-up to a fraction of the range between the
  // minimum and the peak, with f(0) = 1 and f(1) = 0. The formulas are in schedule.cc.
  struct Decay {
    std::string name;  // name with parameters; when a run resumes, it is compared with the name in the checkpoint
    std::function<double(double)> factor;
    static const Decay cosine, linear;
    bool operator==(const Decay& other) const { return name == other.name; }
  };
  double peak = 4e-4;        // lr in the formulas
  int64_t warmup_steps = 0;  // w in the formulas; 0 <= w <= steps
  int64_t steps = 1;         // T in the formulas
  double min_factor = 0.1;   // m in the formulas: the rate at step T as a fraction of the peak
  Decay decay = Decay::cosine;

  // Reads [lr_scheduler]. `peak` is optimizer.lr, `steps` is training.steps.
  static Schedule from_config(Config& config, double peak, int64_t steps);
  // Adds the settings "lr_scheduler.KEY", which a resumed run compares with its checkpoint.
  void add_settings(nlohmann::ordered_json& settings) const;

  double rate(int64_t steps_taken) const;
};

// A schedule that shifts the learned offsets tau of Elastic-Softmax in addition to the updates of the optimizer. After
// t optimizer steps the total shift of every offset is
//
//   from + (to - from) min(1, t / S)
//
// where S is the number of steps of the schedule. Set by [model] offset_schedule = { from, to, steps }.
struct OffsetSchedule {
  double from = 0, to = 0;
  double steps = 0.35;  // number of steps; values up to 1 are a fraction of the steps of the run
  bool used = false;

  static OffsetSchedule from_config(Config& config);
  // Returns the shift after `steps_taken` of `run_steps` steps; `before` is the shift one step earlier. The remaining
  // distance to `to` is spread evenly over the remaining steps. Therefore the offsets do not jump if the number of
  // steps changes (training.minutes) or if a run resumes with a different schedule. Without a schedule, `before` is
  // returned.
  double shift(double before, int64_t steps_taken, int64_t run_steps) const;
};

}  // namespace lazy::train
