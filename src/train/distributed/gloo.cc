// Gloo itself is inside libtorch_cpu. PyTorch's header wants Gloo's headers, which the wheel lacks; those of the system
// may be of another version, because only pointers to Gloo's classes pass through here.
#ifdef LAZY_HAVE_GLOO
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <cstdlib>

#include "core/error.h"
#include "train/distributed/backend.h"

namespace lazy::train {

#ifdef LAZY_HAVE_GLOO
BackendPtr make_gloo(const StorePtr& store, const World& world, std::chrono::milliseconds timeout) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");  // as in PyTorch
  options->devices.push_back(interface && *interface ? ProcessGroupGloo::createDeviceForInterface(interface)
                                                     : ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<ProcessGroupGloo>(store, world.rank, world.size, options);
}
#else
BackendPtr make_gloo(const StorePtr&, const World& world, std::chrono::milliseconds) {
  fail(
      "distributed",
      "{} ranks were started, but this build has no Gloo: install Gloo's headers (Debian: libgloo-dev) and build again",
      world.size);
}
#endif

}  // namespace lazy::train
