// `lazy train`: the training loop. The results of a run depend only on the configuration, the corpus and the number of
// threads. They do not depend on interruptions, the prefetch depth or the times at which checkpoints are written.
#pragma once
#include "train/config.h"

namespace lazy::train {

struct TrainResult {
  int64_t step = 0;
  std::filesystem::path model;  // folder of the finished model; empty on ranks other than 0
};

// Trains until `config.steps` and writes the run folder. Every rank of a launched run calls this function
// (distributed/launch.h). Throws Error (exit code 2) for user errors, RunError (exit code 1) if the loss or a gradient
// is not finite or a checkpoint cannot be written, and Interrupted for SIGINT, SIGTERM and SIGUSR1 if
// install_stop_handlers was called. With `resume`, a finished run is not changed.
TrainResult train(const TrainConfig& config, bool resume);

}  // namespace lazy::train
