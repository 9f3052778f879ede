#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "core/config.h"
#include "core/enum_table.h"
#include "core/error.h"

namespace lazy::train {

namespace {

using Decay = Schedule::Decay;
constexpr auto kDecays = enum_table<Decay>({{Decay::cosine, "cosine"}, {Decay::linear, "linear"}});

// f(x): the fraction of the range from peak to minimum that is left after the fraction x of the decay.
double decay_factor(Decay decay, double x) {
  switch (decay) {
    case Decay::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
    case Decay::linear:
      return 1.0 - x;
  }
  return 0;
}

}  // namespace

Schedule Schedule::from_config(Config& config, double peak, int64_t steps) {
  auto section = config.section("lr_scheduler");
  Schedule s{.peak = peak, .steps = steps};
  s.warmup_steps = section.integer("warmup_steps", std::min<int64_t>(1024, steps / 20), 0);
  if (s.warmup_steps > steps) {
    fail("config", "{}: lr_scheduler.warmup_steps: expected at most training.steps = {}, found {}",
         section.where("warmup_steps"), steps, s.warmup_steps);
  }
  s.min_factor = section.number("min_lr_factor", s.min_factor, 0, 1);
  s.decay = section.choice("decay_type", s.decay, kDecays);
  return s;
}

void Schedule::add_settings(nlohmann::ordered_json& settings) const {
  settings["lr_scheduler.warmup_steps"] = warmup_steps;
  settings["lr_scheduler.min_lr_factor"] = min_factor;
  settings["lr_scheduler.decay_type"] = kDecays.name(decay);
}

double Schedule::rate(int64_t steps_taken) const {
  if (steps_taken < warmup_steps) return peak * static_cast<double>(steps_taken) / static_cast<double>(warmup_steps);
  const int64_t span = std::max<int64_t>(1, steps - warmup_steps);
  const double x = std::min(1.0, static_cast<double>(steps_taken - warmup_steps) / static_cast<double>(span));
  return peak * (min_factor + (1.0 - min_factor) * decay_factor(decay, x));
}

}  // namespace lazy::train
