// `lazy train`: the training loop. A run's numbers depend on the configuration, the corpus and the number of threads
// only: not on interruptions, on the depth of prefetch, or on when checkpoints are written.
#pragma once
#include "train/config.h"

namespace lazy::train {

struct TrainResult {
  int64_t step = 0;
  std::filesystem::path model;  // folder of the finished model; empty on ranks above 0
};

// Trains to `config.steps` and writes the run folder. Every rank of a launched run calls this (distributed/launch.h).
// Throws Error (exit code 2) for user errors, RunError (1) for a loss or gradient that is not finite and for a failed
// write of a checkpoint, Interrupted for SIGINT, SIGTERM and SIGUSR1 after install_stop_handlers. With `resume`, a
// finished run is left unchanged.
TrainResult train(const TrainConfig& config, bool resume);

}  // namespace lazy::train
