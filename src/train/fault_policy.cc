#include "train/fault_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace lazy::train {

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Empty when there is none.
std::string spike(const FaultOptions& options, const std::vector<double>& window, double value, const char* what) {
  if (options.spike_factor <= 0 || static_cast<int64_t>(window.size()) < options.spike_window) return "";
  const double usual = median(window);
  if (value <= options.spike_factor * usual) return "";
  return fmt::format("{} is {:.4g}, {:.1f} times the median of the last {} steps", what, value, value / usual,
                     options.spike_window);
}

void remember(std::vector<double>& window, double value, int64_t size) {
  window.push_back(value);
  if (static_cast<int64_t>(window.size()) > size) window.erase(window.begin(), window.end() - size);
}

}  // namespace

FaultAction FaultOptions::action(const std::string& name) {
  return name == "skip" ? FaultAction::skip : name == "roll_back" ? FaultAction::roll_back : FaultAction::stop;
}

nlohmann::ordered_json to_json(const FaultState& state) {
  return {{"skipped", state.skipped},
          {"skipped_in_a_row", state.skipped_in_a_row},
          {"rolled_back", state.rolled_back},
          {"losses", state.losses},
          {"norms", state.norms}};
}

FaultState fault_state_from_json(const nlohmann::ordered_json& json) {
  return {json.at("skipped").get<int64_t>(), json.at("skipped_in_a_row").get<int64_t>(),
          json.at("rolled_back").get<int64_t>(), json.at("losses").get<std::vector<double>>(),
          json.at("norms").get<std::vector<double>>()};
}

Verdict judge(const FaultOptions& options, FaultState& state, double loss, double gradient_norm) {
  Verdict verdict;
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) {
    const bool at_loss = !std::isfinite(loss);
    verdict.action = options.on_nan;
    verdict.problem = fmt::format("{} is {}", at_loss ? "the loss" : "the gradient norm",
                                  std::abs(at_loss ? loss : gradient_norm));  // NaN without a sign
  } else {
    verdict.problem = spike(options, state.losses, loss, "the loss");
    if (verdict.problem.empty()) verdict.problem = spike(options, state.norms, gradient_norm, "the gradient norm");
    if (!verdict.problem.empty()) verdict.action = options.on_spike;
  }
  if (verdict.action == FaultAction::none) {
    state.skipped_in_a_row = 0;
    if (options.spike_factor > 0) {
      remember(state.losses, loss, options.spike_window);
      remember(state.norms, gradient_norm, options.spike_window);
    }
  } else if (verdict.action == FaultAction::skip && state.skipped_in_a_row >= options.max_skips) {
    verdict.action = FaultAction::stop;
    verdict.limit = fmt::format("{} steps in a row were skipped, training.max_skips", state.skipped_in_a_row);
  } else if (verdict.action == FaultAction::roll_back && state.rolled_back >= options.max_roll_backs) {
    verdict.action = FaultAction::stop;
    verdict.limit = fmt::format("the run was rolled back {} times, training.max_roll_backs", state.rolled_back);
  }
  if (verdict.action == FaultAction::skip) ++state.skipped, ++state.skipped_in_a_row;
  if (verdict.action == FaultAction::roll_back) ++state.rolled_back;
  return verdict;
}

}  // namespace lazy::train
