// The log of a run: one JSON line a logged step in log.jsonl (keys: docs/run-directory.md) and the same numbers as
// TensorBoard scalars.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/tensorboard.h"

namespace lazy::train {

using Scalars = std::vector<std::pair<std::string, double>>;  // written in this order

class MetricsLog {
 public:
  // Continues the log of `run` after `step`: removes later lines and an incomplete last line. step 0 starts an empty
  // log.
  MetricsLog(const std::filesystem::path& run, int64_t step, bool tensorboard);
  // `seconds`: since the run first started. A value that is not finite is written as null.
  void write(int64_t step, int64_t tokens, double seconds, const Scalars& values);
  void sync();

 private:
  AppendFile lines_;
  std::unique_ptr<EventWriter> events_;
};

// The lines of a log up to `step`; ends before the first line that is not a complete JSON object.
std::string log_up_to(const std::string& log, int64_t step);

}  // namespace lazy::train
