// The learning rate of each optimizer step: linear warm-up from 0, then decay to a fraction of the peak.
//
//   t < w:   rate = lr t / w
//   t >= w:  rate = lr (m + (1 - m) f(x)),  x = (t - w) / (T - w)
//
// t counts the optimizer steps already taken: with a warm-up the first step has rate 0. f is the decay.
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
  // f: maps the fraction x of the steps after the warm-up to the fraction of the range between minimum and peak. The
  // formulas are in schedule.cc.
  struct Decay {
    std::string name;  // with its parameters: what a resumed run compares
    std::function<double(double)> factor;
    static const Decay cosine, linear;
    bool operator==(const Decay& other) const { return name == other.name; }
  };
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

// A shift of the learned offsets tau of Elastic-Softmax: after t of T optimizer steps it has moved every offset by
//
//   from + (to - from) min(1, t / S),  S = the steps of the shift
//
// in addition to what the optimizer did. [model] offset_schedule = { from, to, steps }.
struct OffsetSchedule {
  double from = 0, to = 0;
  double steps = 0.35;  // at most 1: a fraction of the run's steps
  bool used = false;

  static OffsetSchedule from_config(Config& config);
  // The shift after `steps_taken` of a run's `run_steps`; `before`: the shift after one step less. What is left of the
  // way to `to` is spread evenly over the steps that are left. So the offsets do not jump if the number of steps
  // changes (training.minutes) or if a resumed run has another schedule. Without a schedule the shift stays.
  double shift(double before, int64_t steps_taken, int64_t run_steps) const;
};

}  // namespace lazy::train
