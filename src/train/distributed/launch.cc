#include "train/distributed/launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <csignal>

#include "core/error.h"
#include "core/log.h"
#include "core/stop.h"
#include "train/machine.h"

namespace lazy::train {

namespace {

// The GPU of this rank becomes the current one.
at::Device device_of(const std::string& name, const World& world) {
  if (name != "cuda") return at::kCPU;
  const int64_t count = device_count(name);
  if (world.local_rank >= count) {
    fail("train", "local rank {} needs a GPU of its own: expected at most {} ranks on this machine", world.local_rank,
         count);
  }
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(world.local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

}  // namespace

void as_rank(const World& world, const std::string& device_name, std::chrono::milliseconds timeout,
             const std::function<void(Communicator&, at::Device)>& body) {
  if (world.rank > 0) log::set_level(2);  // the first rank speaks for all
  // A message to a rank that has just died must fail with an error that can name it, not end this process silently.
  if (world.size > 1) std::signal(SIGPIPE, SIG_IGN);
  const at::Device device = device_of(device_name, world);
  Communicator communicator(world, device, timeout);
  const auto of_rank = [&](const Error& e) {
    return world.rank == 0 ? e.what() : fmt::format("rank {}: {}", world.rank, e.what());
  };
  try {
    body(communicator, device);
    communicator.finish();
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
