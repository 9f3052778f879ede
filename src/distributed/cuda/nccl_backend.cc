#include "distributed/backends.h"

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace lazy::distributed {

extern "C" __attribute__((visibility("default"))) void lazy_make_nccl(BackendPtr& out, const StorePtr& store,
                                                                      const RankInfo& info, at::Device device,
                                                                      std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, info.rank, info.size, options);
  group->setBoundDeviceId(device);
  out = group;
}

static_assert(std::is_same_v<decltype(lazy_make_nccl), NcclFactory>);

}  // namespace lazy::distributed
