// Constructs the c10d backends, Gloo for CPU tensors and NCCL for CUDA tensors. NCCL is in liblazy_nccl.so, which is
// loaded at run time.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "distributed/communicator.h"

namespace lazy::distributed {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Both functions throw Error if the build does not contain the backend.
BackendPtr make_gloo(const StorePtr& store, const RankInfo& info, std::chrono::milliseconds timeout);
BackendPtr make_nccl(const StorePtr& store, const RankInfo& info, at::Device device, std::chrono::milliseconds timeout);

// Type and name of the function that liblazy_nccl.so exports. It constructs the NCCL backend.
using NcclFactory = void(BackendPtr& out, const StorePtr& store, const RankInfo& info, at::Device device,
                         std::chrono::milliseconds timeout);
inline constexpr const char* kNcclFactory = "lazy_make_nccl";

}  // namespace lazy::distributed
