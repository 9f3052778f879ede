#include "train/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "core/config.h"
#include "core/error.h"

namespace lazy::train {

namespace {

// By the value of Schedule::Decay.
constexpr std::array<const char*, 2> kDecayNames = {"cosine", "linear"};

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
  const std::string decay = section.choice("decay_type", "cosine", {kDecayNames.begin(), kDecayNames.end()});
  s.decay = static_cast<Decay>(std::find(kDecayNames.begin(), kDecayNames.end(), decay) - kDecayNames.begin());
  return s;
}

void Schedule::add_settings(nlohmann::ordered_json& settings) const {
  settings["lr_scheduler.warmup_steps"] = warmup_steps;
  settings["lr_scheduler.min_lr_factor"] = min_factor;
  settings["lr_scheduler.decay_type"] = kDecayNames[static_cast<size_t>(decay)];
}

double Schedule::rate(int64_t steps_taken) const {
  if (steps_taken < warmup_steps) return peak * static_cast<double>(steps_taken) / static_cast<double>(warmup_steps);
  const int64_t span = std::max<int64_t>(1, steps - warmup_steps);
  const double x = std::min(1.0, static_cast<double>(steps_taken - warmup_steps) / static_cast<double>(span));
  const double left = decay == Decay::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * x)) : 1.0 - x;
  return peak * (min_factor + (1.0 - min_factor) * left);
}

}  // namespace lazy::train
