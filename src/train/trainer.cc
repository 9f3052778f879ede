#include "train/trainer.h"

#include <ATen/Context.h>

#include <cstdlib>

#include "train/distributed/launch.h"
#include "train/loop/loop.h"

namespace lazy::train {

TrainResult train(const TrainConfig& config, bool resume) {
  // The profiler's library tells of every GPU it does not find. It reads this once.
  if (!config.trace_steps.empty() && config.device == "cpu") ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  // Moments of rarely seen words decay into denormal numbers, which cost a hundred cycles each. Threads inherit the
  // setting, so it comes before the first of them starts.
  at::globalContext().setFlushDenormal(true);
  const World world = world_from_environment();
  TrainConfig shared = config;
  shared.set_ranks(world.size);
  const std::chrono::milliseconds timeout(static_cast<int64_t>(1000 * config.communication_timeout));
  TrainResult result;
  as_rank(world, shared.device, timeout, [&](Communicator& communicator, at::Device device) {
    result = Trainer(shared, resume, communicator, device).run();
  });
  return result;
}

}  // namespace lazy::train
