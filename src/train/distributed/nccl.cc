#include <dlfcn.h>

#include "core/error.h"
#include "ops/load_cuda.h"
#include "train/distributed/backend.h"
#include "train/distributed/cuda/nccl_backend.h"

namespace lazy::train {

BackendPtr make_nccl(const StorePtr& store, const World& world, at::Device device, std::chrono::milliseconds timeout) {
  const auto path = ops::library_beside("liblazy_nccl.so");
  if (!std::filesystem::exists(path)) {
    fail("distributed", "{} ranks were started on GPUs, but this build has no NCCL ({} does not exist)", world.size,
         path.string());
  }
  ops::load_cuda();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) fail_run("distributed", "{}", dlerror());
  const auto make = reinterpret_cast<NcclFactory*>(dlsym(library, kNcclFactory));
  if (!make) fail_run("distributed", "{}", dlerror());
  BackendPtr backend;
  make(backend, store, world, device, timeout);
  return backend;
}

}  // namespace lazy::train
