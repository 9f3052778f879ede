#include "train/anomaly.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/error.h"
#include "core/statistics.h"

#include <algorithm>
#include <cmath>

namespace lazy::train {

namespace {

// Returns a description of the spike if `value` exceeds spike_factor times the median of `window`. Returns ""
// otherwise, and if `window` has fewer than spike_window values.
std::string describe_spike(const AnomalyOptions& options, const std::vector<double>& window, double value,
                           const char* what) {
  if (options.spike_factor <= 0 || static_cast<int64_t>(window.size()) < options.spike_window) return "";
  const double usual = median_of(window);
  if (value <= options.spike_factor * usual) return "";
  return fmt::format("{} is {:.4g}, {:.1f} times the median of the last {} steps", what, value, value / usual,
                     options.spike_window);
}

void push(std::vector<double>& window, double value, int64_t size) {
  window.push_back(value);
  if (static_cast<int64_t>(window.size()) > size) window.erase(window.begin(), window.end() - size);
}

AnomalyAction parse_action(const std::string& name) {
  return name == "skip" ? AnomalyAction::skip : name == "roll_back" ? AnomalyAction::roll_back : AnomalyAction::stop;
}

}  // namespace

AnomalyOptions AnomalyOptions::from_config(Config& config) {
  auto training = config.section("training");
  AnomalyOptions f;
  f.on_nan = parse_action(training.choice("on_nan", "stop", {"stop", "skip", "roll_back"}));
  f.on_spike = parse_action(training.choice("on_spike", "stop", {"stop", "skip", "roll_back"}));
  f.spike_factor = training.number("spike_factor", f.spike_factor, 0);
  f.spike_window = training.integer("spike_window", f.spike_window, 1, 100000);
  f.max_skips = training.integer("max_skips", f.max_skips, 0);
  f.max_roll_backs = training.integer("max_roll_backs", f.max_roll_backs, 0);
  if (f.spike_factor > 0 && f.spike_factor <= 1) {
    fail("config", "{}: training.spike_factor: expected 0 or more than 1, found {}", training.where("spike_factor"),
         f.spike_factor);
  }
  if (training.has("on_spike") && f.spike_factor == 0) {
    fail("config", "{}: training.on_spike: needs training.spike_factor above 1", training.where("on_spike"));
  }
  return f;
}

nlohmann::ordered_json to_json(const AnomalyState& state) {
  return {{"skipped", state.skipped},
          {"skipped_in_a_row", state.skipped_in_a_row},
          {"rolled_back", state.rolled_back},
          {"losses", state.losses},
          {"norms", state.norms}};
}

AnomalyState anomaly_state_from_json(const nlohmann::ordered_json& json) {
  return {json.at("skipped").get<int64_t>(), json.at("skipped_in_a_row").get<int64_t>(),
          json.at("rolled_back").get<int64_t>(), json.at("losses").get<std::vector<double>>(),
          json.at("norms").get<std::vector<double>>()};
}

AnomalyDecision check_anomaly(const AnomalyOptions& options, AnomalyState& state, double loss, double gradient_norm) {
  AnomalyDecision decision;
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
    const bool at_loss = !std::isfinite(loss);
    decision.action = options.on_nan;
    decision.problem = fmt::format("{} is {}", at_loss ? "the loss" : "the gradient norm",
                                   std::abs(at_loss ? loss : gradient_norm));  // abs: print NaN without a sign
  } else {
    decision.problem = describe_spike(options, state.losses, loss, "the loss");
    if (decision.problem.empty())
      decision.problem = describe_spike(options, state.norms, gradient_norm, "the gradient norm");
    if (!decision.problem.empty()) decision.action = options.on_spike;
  }
  if (decision.action == AnomalyAction::none) {
    state.skipped_in_a_row = 0;
    if (options.spike_factor > 0) {
      push(state.losses, loss, options.spike_window);
      push(state.norms, gradient_norm, options.spike_window);
    }
  } else if (decision.action == AnomalyAction::skip && state.skipped_in_a_row >= options.max_skips) {
    decision.action = AnomalyAction::stop;
    decision.limit =
        fmt::format("{} consecutive steps were skipped, which is the limit training.max_skips", state.skipped_in_a_row);
  } else if (decision.action == AnomalyAction::roll_back && state.rolled_back >= options.max_roll_backs) {
    decision.action = AnomalyAction::stop;
    decision.limit =
        fmt::format("the run was rolled back {} times, which is the limit training.max_roll_backs", state.rolled_back);
  }
  if (decision.action == AnomalyAction::skip) ++state.skipped, ++state.skipped_in_a_row;
  if (decision.action == AnomalyAction::roll_back) ++state.rolled_back;
  return decision;
}

}  // namespace lazy::train
