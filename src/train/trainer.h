// `lazy train`: the training loop. A run's numbers depend on the configuration, the corpus and the number of threads
// alone: not on pauses, on how far data is read ahead, or on when checkpoints are written.
#pragma once
#include "core/stop.h"
#include "train/config.h"

namespace lazy::train {

struct TrainResult {
  int64_t step = 0;
  std::filesystem::path model;  // the finished model's folder; empty on all ranks but the first
};

// Several ranks (distributed/world.h) train together; each calls this. Trains to `config.steps` and writes the run
// folder. Throws Error (exit code 2) for what the user can mend, RunError (1) for a loss or gradient that is not finite
// and for a disk that does not take a checkpoint, Interrupted for SIGINT, SIGTERM and SIGUSR1 if install_stop_handlers
// was called. With `resume`, a finished run is left as it is.
TrainResult train(const TrainConfig& config, bool resume);

}  // namespace lazy::train
