#include "train/trainer.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "core/log.h"
#include "train/loop/loop.h"
#include "train/machine.h"

namespace lazy::train {

namespace {

// The GPU of this rank becomes the current one.
at::Device compute_device(const TrainConfig& config, const World& world) {
  if (config.device != "cuda") return at::kCPU;
  const int64_t count = device_count(config.device);
  if (world.local_rank >= count) {
    fail("train", "local rank {} needs a GPU of its own: expected at most {} ranks on this machine", world.local_rank, count);
  }
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(world.local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

}  // namespace

TrainResult train(const TrainConfig& config, bool resume) {
  // The profiler's library tells of every GPU it does not find. It reads this once.
  if (!config.trace_steps.empty() && config.device == "cpu") ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  // Moments of rarely seen words decay into denormal numbers, which cost a hundred cycles each. Threads inherit the
  // setting, so it comes before the first of them starts.
  at::globalContext().setFlushDenormal(true);
  const World world = world_from_environment();
  TrainConfig shared = config;
  shared.set_ranks(world.size);
  if (world.rank > 0) log::set_level(2);  // the first rank speaks for all
  const at::Device device = compute_device(config, world);
  Communicator communicator(world, device, std::chrono::milliseconds(static_cast<int64_t>(1000 * config.communication_timeout)));
  const auto of_rank = [&](const Error& e) { return world.rank == 0 ? e.what() : fmt::format("rank {}: {}", world.rank, e.what()); };
  try {
    TrainResult result = Trainer(shared, resume, communicator, device).run();
    communicator.finish();
    return result;
  } catch (const Interrupted& e) {
    communicator.finish();  // launchers kill the others when one ends, and the first may still be writing
    throw Interrupted(of_rank(e), e.exit_code() - 128);
  } catch (const Error& e) {
    communicator.announce(of_rank(e));
    if (e.exit_code() == 1) throw RunError(of_rank(e));
    throw Error(of_rank(e));
  } catch (const std::exception& e) {
    communicator.announce(fmt::format("rank {}: {}", world.rank, e.what()));
    throw;
  }
}

}  // namespace lazy::train
