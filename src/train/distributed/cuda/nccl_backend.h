// The one function of liblazy_nccl.so.
#pragma once
#include "train/distributed/backend.h"

namespace lazy::train {

using NcclFactory = void(BackendPtr& out, const StorePtr& store, const World& world, at::Device device,
                         std::chrono::milliseconds timeout);
inline constexpr const char* kNcclFactory = "lazy_make_nccl";

}  // namespace lazy::train
