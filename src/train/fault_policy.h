// What a run does about a step whose loss or gradient is not finite or far above the usual: [training] on_nan,
// on_spike.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy::train {

enum class FaultAction { none, stop, skip, roll_back };

struct FaultOptions {
  FaultAction on_nan = FaultAction::stop, on_spike = FaultAction::stop;
  double spike_factor = 0;     // times the median of the last steps; 0: spikes are not looked for
  int64_t spike_window = 100;  // steps whose median counts
  int64_t max_skips = 10;      // in a row; one more stops the run
  int64_t max_roll_backs = 3;  // in the whole run

  static FaultAction action(const std::string& name);  // "stop", "skip", "roll_back"
};

// What of it a checkpoint keeps.
struct FaultState {
  int64_t skipped = 0, skipped_in_a_row = 0, rolled_back = 0;
  std::vector<double> losses, norms;  // of the last good steps, oldest first; empty when spikes are not looked for
};
nlohmann::ordered_json to_json(const FaultState& state);
FaultState fault_state_from_json(const nlohmann::ordered_json& json);  // throws nlohmann's exceptions

struct Verdict {
  FaultAction action = FaultAction::none;
  std::string problem;  // "the loss is nan"
  std::string limit;    // why it stops although the policy says otherwise
};

// Judges a step before its update. What it decides is counted in `state`: good steps enter the window, skips and roll
// backs their counters.
Verdict judge(const FaultOptions& options, FaultState& state, double loss, double gradient_norm);

}  // namespace lazy::train
