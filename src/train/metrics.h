// The log of a run: one JSON line a logged step in log.jsonl (keys: docs/run-directory.md) and the same numbers as
// TensorBoard scalars.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/append_file.h"
#include "train/tensorboard.h"

namespace lazy::train {

using Scalars = std::vector<std::pair<std::string, double>>;  // in the order in which they are written

class MetricsLog {
 public:
  // Continues the log of `run` after `step`: later lines, and a line that a crash left unfinished, are dropped.
  // step 0 starts an empty log.
  MetricsLog(const std::filesystem::path& run, int64_t step, bool tensorboard);
  // Seconds since the run first started go first, then `values`. A value that is not finite is written as null.
  void write(int64_t step, int64_t tokens, double seconds, const Scalars& values);
  void sync();

 private:
  AppendFile lines_;
  std::unique_ptr<EventWriter> events_;
};

// The lines of a log whose "step" is at most `step`; stops at the first line that is not a whole JSON object.
std::string log_up_to(const std::string& log, int64_t step);

}  // namespace lazy::train
