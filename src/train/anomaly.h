// Detects training steps whose loss or gradient norm spikes or is not finite. The keys on_nan and on_spike of
// [training] select the reaction: stop the run, skip the weight update of the step, or roll back to the last
// checkpoint.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy {
class Config;
}

namespace lazy::train {

enum class AnomalyAction { none, stop, skip, roll_back };

struct AnomalyOptions {
  AnomalyAction on_nan = AnomalyAction::stop, on_spike = AnomalyAction::stop;
  double spike_factor = 0;  // A value above the running median times spike_factor is a spike. 0 disables the detection.
  int64_t spike_window = 100;  // The running median covers this number of steps.
  // Maximum number of consecutive skipped steps. If one more step would be skipped, the run stops.
  int64_t max_skips = 10;
  int64_t max_roll_backs = 3;  // Maximum number of roll backs in the whole run.

  static AnomalyOptions from_config(Config& config);
};

// Counters of skipped steps and roll backs, and the values that the running medians cover. A checkpoint contains this
// state.
struct AnomalyState {
  int64_t skipped = 0, skipped_in_a_row = 0, rolled_back = 0;
  // Losses and gradient norms of the last normal steps, oldest first. Both lists are empty without spike detection.
  std::vector<double> losses, norms;
};
nlohmann::ordered_json to_json(const AnomalyState& state);
AnomalyState anomaly_state_from_json(const nlohmann::ordered_json& json);  // Throws nlohmann::json exceptions.

struct AnomalyDecision {
  AnomalyAction action = AnomalyAction::none;
  std::string problem;  // description of the problem, for example "the loss is nan"
  // If a limit (max_skips or max_roll_backs) was reached and `action` is therefore `stop`: a description of the limit.
  // Otherwise "".
  std::string limit;
};

// Decides whether the weights are updated with the gradients of a step, and updates `state`: the loss and the gradient
// norm of a normal step are appended to `losses` and `norms`; a skip or roll back increments its counter.
AnomalyDecision check_anomaly(const AnomalyOptions& options, AnomalyState& state, double loss, double gradient_norm);

}  // namespace lazy::train
