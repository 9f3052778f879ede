#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "core/config.h"
#include "core/error.h"

namespace lazy::train {

using Decay = Schedule::Decay;

const Decay Decay::cosine{"cosine", [](double x) { return 0.5 * (1.0 + std::cos(std::numbers::pi * x)); }};
const Decay Decay::linear{"linear", [](double x) { return 1.0 - x; }};

namespace {

// The 1-sqrt cooldown of Hägele et al., arXiv:2405.18392.
const Decay kSqrt{"sqrt", [](double x) { return 1.0 - std::sqrt(x); }};

// WSD (warm-up, stable, decay): the rate stays at its peak up to the fraction `start` of the steps after the warm-up,
// then follows `decay`.
Decay after_stable_phase(const Decay& decay, double ratio, double start) {
  return {fmt::format("{}, decay_ratio {}", decay.name, ratio),
          [factor = decay.factor, start](double x) { return x <= start ? 1.0 : factor((x - start) / (1.0 - start)); }};
}

Decay read_decay(ConfigSection& section) {
  const std::vector<Decay> decays = {Decay::cosine, Decay::linear, kSqrt};
  std::vector<std::string> names;
  for (const Decay& decay : decays) names.push_back(decay.name);
  const std::string name = section.choice("decay_type", names.front(), names);
  return *std::find_if(decays.begin(), decays.end(), [&](const Decay& decay) { return decay.name == name; });
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
  s.decay = read_decay(section);
  if (const double ratio = section.number("decay_ratio", 0, 0, 1); ratio > 0) {
    const int64_t stable = steps - s.warmup_steps - std::llround(ratio * static_cast<double>(steps));
    if (stable < 0) {
      fail(
          "config",
          "{}: lr_scheduler.decay_ratio: the decay ({} of {} steps) and {} warmup_steps together exceed training.steps",
          section.where("decay_ratio"), ratio, steps, s.warmup_steps);
    }
    const auto span = static_cast<double>(std::max<int64_t>(1, steps - s.warmup_steps));
    s.decay = after_stable_phase(s.decay, ratio, static_cast<double>(stable) / span);
  }
  return s;
}

void Schedule::add_settings(nlohmann::ordered_json& settings) const {
  settings["lr_scheduler.warmup_steps"] = warmup_steps;
  settings["lr_scheduler.min_lr_factor"] = min_factor;
  settings["lr_scheduler.decay_type"] = decay.name;
}

double Schedule::rate(int64_t steps_taken) const {
  if (steps_taken < warmup_steps) return peak * static_cast<double>(steps_taken) / static_cast<double>(warmup_steps);
  const int64_t span = std::max<int64_t>(1, steps - warmup_steps);
  const double x = std::min(1.0, static_cast<double>(steps_taken - warmup_steps) / static_cast<double>(span));
  return peak * (min_factor + (1.0 - min_factor) * decay.factor(x));
}

OffsetSchedule OffsetSchedule::from_config(Config& config) {
  auto model = config.section("model");
  OffsetSchedule s;
  const auto given = [&](const char* key) { return model.has(std::string("offset_schedule.") + key); };
  s.used = given("from") || given("to") || given("steps");
  if (s.used && !given("to"))
    fail("config", "{}: model.offset_schedule: expected 'to', the shift of the offsets at the end of the schedule",
         config.name());
  s.from = model.number("offset_schedule.from", s.from);
  s.to = model.number("offset_schedule.to", s.to);
  s.steps = model.number("offset_schedule.steps", s.steps, 0);
  if (s.steps > 1 && s.steps != std::floor(s.steps))
    fail("config",
         "{}: model.offset_schedule.steps: expected a fraction of the training steps (at most 1) or a number of steps, "
         "found {}",
         model.where("offset_schedule.steps"), s.steps);
  return s;
}

double OffsetSchedule::shift(double before, int64_t steps_taken, int64_t run_steps) const {
  if (!used) return before;
  if (steps_taken == 0 && steps > 0) return from;
  const double length = steps > 1 ? steps : std::round(steps * static_cast<double>(run_steps));
  // number of remaining steps of the schedule, including the step that has just been taken
  const double left = length - static_cast<double>(steps_taken - 1);
  return left > 1 ? before + (to - before) / left : to;
}

}  // namespace lazy::train
