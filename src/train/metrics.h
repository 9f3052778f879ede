// The log of a run: log.jsonl has one JSON line per logged step (keys: docs/reference/run-directory.md), and
// TensorBoard event files contain the same values as scalars.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/tensorboard.h"

namespace lazy::train {

using Scalars = std::vector<std::pair<std::string, double>>;  // names and values, which are written in this order

class MetricsLog {
 public:
  // Continues the log of `run` after `step`: later lines and an incomplete last line are removed. With step 0 the log
  // starts empty.
  MetricsLog(const std::filesystem::path& run, int64_t step, bool tensorboard);
  // `seconds` is the time since the run first started. A value that is not finite is written as null.
  void write(int64_t step, int64_t tokens, double seconds, const Scalars& values);
  void sync();

 private:
  AppendFile lines_;
  std::unique_ptr<EventWriter> events_;
};

// Returns the lines of a log up to training step `step`. Stops at the first line that is not a complete JSON object.
std::string log_up_to(const std::string& log, int64_t step);

}  // namespace lazy::train
