#include "distributed/backends.h"

// The Gloo implementation is part of libtorch_cpu, but the PyTorch wheel does not contain the Gloo headers. The
// installed headers may have a different version, so this file only passes pointers to Gloo classes.
#ifdef LAZY_HAVE_GLOO
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "ops/load_cuda.h"

namespace lazy::distributed {

#ifdef LAZY_HAVE_GLOO
BackendPtr make_gloo(const StorePtr& store, const RankInfo& info, std::chrono::milliseconds timeout) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");  // PyTorch uses the same variable.
  options->devices.push_back(interface && *interface ? ProcessGroupGloo::createDeviceForInterface(interface)
                                                     : ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<ProcessGroupGloo>(store, info.rank, info.size, options);
}
#else
BackendPtr make_gloo(const StorePtr&, const RankInfo& info, std::chrono::milliseconds) {
  fail("distributed",
       "{} ranks were started, but this build has no Gloo: install the Gloo headers (Debian: libgloo-dev) and rebuild",
       info.size);
}
#endif

BackendPtr make_nccl(const StorePtr& store, const RankInfo& info, at::Device device,
                     std::chrono::milliseconds timeout) {
  const auto path = ops::library_beside("liblazy_nccl.so");
  if (!std::filesystem::exists(path)) {
    fail("distributed", "{} ranks were started on GPUs, but this build has no NCCL ({} does not exist)", info.size,
         path.string());
  }
  ops::load_cuda();  // loads libtorch_cuda, which liblazy_nccl.so needs
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) fail_run("distributed", "{}", dlerror());
  const auto make = reinterpret_cast<NcclFactory*>(dlsym(library, kNcclFactory));
  if (!make) fail_run("distributed", "{}", dlerror());
  BackendPtr backend;
  make(backend, store, info, device, timeout);
  return backend;
}

}  // namespace lazy::distributed
