// Runs this process as one rank of a command that a launcher has started. The launcher's environment variables
// determine the rank, the rendezvous address and the device.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "distributed/communicator.h"

namespace lazy::distributed {

// Reads the environment variables of torchrun, Open MPI's mpirun or Slurm's srun. Without a launcher the world size is
// 1. Throws Error with the name of a variable that is missing, is not a number, or contradicts another variable.
RankInfo rank_info_from_environment();

// Returns the first host of a Slurm node list: "node[07-09,12],gpu1" -> "node07".
std::string first_slurm_host(const std::string& list);

// Connects to the other ranks and calls `body` with the communicator and the device of this rank. The device is "cpu",
// or for "cuda" the GPU with the index of the local rank ("cuda:1"), which becomes the current device. Ranks other than
// 0 only log warnings. An exception from `body` terminates all ranks with a message that names the rank that threw it.
// If `body` throws Interrupted, all ranks shut down together.
void run_as_rank(const RankInfo& info, const std::string& device, std::chrono::milliseconds timeout,
                 const std::function<void(Communicator&, const std::string& device)>& body);

}  // namespace lazy::distributed
