// This process as one rank of a launched command: its device, its connection to the others, and their common end.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "train/distributed/communicator.h"

namespace lazy::train {

// Calls `body` with the ranks of `world` and this rank's device: the CPU, or with device = "cuda" the GPU of its local
// rank, which becomes the current one. Ranks beyond the first keep their log to warnings. What `body` throws ends all
// ranks and says which one it came from; an Interrupted ends them together.
void as_rank(const World& world, const std::string& device, std::chrono::milliseconds timeout,
             const std::function<void(Communicator&, at::Device)>& body);

}  // namespace lazy::train
