// Detection of training steps whose loss or gradient norm is not finite or spikes, and what to do about them:
// [training] on_nan, on_spike.
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
  double spike_factor = 0;     // a spike exceeds the running median times this; 0: no spike detection
  int64_t spike_window = 100;  // steps of the running median
  int64_t max_skips = 10;      // consecutive skips; one more stops the run
  int64_t max_roll_backs = 3;  // in the whole run

  static AnomalyOptions from_config(Config& config);
};

// Counters and running windows; part of a checkpoint's state.
struct AnomalyState {
  int64_t skipped = 0, skipped_in_a_row = 0, rolled_back = 0;
  std::vector<double> losses, norms;  // of the last normal steps, oldest first; empty without spike detection
};
nlohmann::ordered_json to_json(const AnomalyState& state);
AnomalyState anomaly_state_from_json(const nlohmann::ordered_json& json);  // throws nlohmann's exceptions

struct AnomalyDecision {
  AnomalyAction action = AnomalyAction::none;
  std::string problem;  // "the loss is nan"
  std::string limit;    // the exhausted limit that turned a skip or roll back into a stop, or ""
};

// Decides about a step before its update and updates `state`: a normal step enters the windows, skips and roll backs
// their counters.
AnomalyDecision check_anomaly(const AnomalyOptions& options, AnomalyState& state, double loss, double gradient_norm);

}  // namespace lazy::train
