// A process as one rank of a launched command: its rank and rendezvous address from the launcher's environment
// variables, its device, and the connection to the other ranks.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "distributed/communicator.h"

namespace lazy::distributed {

// Reads the variables of torchrun, Open MPI's mpirun or Slurm's srun; without a launcher the world size is 1. Error
// that names the variable when one is missing, is not a number, or contradicts another.
RankInfo rank_info_from_environment();

// The first host of a Slurm node list: "node[07-09,12],gpu1" -> "node07".
std::string first_slurm_host(const std::string& list);

// Connects to the other ranks and calls `body` with the communicator and this rank's device: "cpu", or with device =
// "cuda" the GPU of its local rank ("cuda:1"), which becomes the current one. Ranks above 0 log warnings only. An
// exception from `body` ends all ranks with a message that names the rank it came from; an Interrupted lets them end
// together.
void run_as_rank(const RankInfo& info, const std::string& device, std::chrono::milliseconds timeout,
                 const std::function<void(Communicator&, const std::string& device)>& body);

}  // namespace lazy::distributed
