#include <dlfcn.h>

#include <filesystem>

#include "core/error.h"
#include "ops/load_cuda.h"
#include "train/distributed/backend.h"
#include "train/distributed/cuda/nccl_backend.h"

namespace lazy::train {

namespace {

// liblazy_nccl.so lies beside liblazy_ops.so.
std::filesystem::path library_path() {
  Dl_info operators;
  dladdr(reinterpret_cast<void*>(&ops::load_cuda), &operators);
  return std::filesystem::path(operators.dli_fname).parent_path() / "liblazy_nccl.so";
}

}  // namespace

BackendPtr make_nccl(const StorePtr& store, const World& world, at::Device device, std::chrono::milliseconds timeout) {
  const auto path = library_path();
  if (!std::filesystem::exists(path)) {
    fail("distributed", "{} ranks were started on GPUs, but this build has no NCCL ({} does not exist)", world.size, path.string());
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
