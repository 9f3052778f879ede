// Makes PyTorch's process groups: Gloo for CPU tensors, NCCL for CUDA tensors from a library that is loaded at run
// time.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "train/distributed/world.h"

namespace lazy::train {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Error where the build lacks the back end.
BackendPtr make_gloo(const StorePtr& store, const World& world, std::chrono::milliseconds timeout);
BackendPtr make_nccl(const StorePtr& store, const World& world, at::Device device, std::chrono::milliseconds timeout);

}  // namespace lazy::train
