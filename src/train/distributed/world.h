// Who this process is among the processes (ranks) of a run, as the launcher tells it through the environment: torchrun,
// Open MPI's mpirun, Slurm's srun, or none of them: a world of one.
#pragma once
#include <string>

namespace lazy::train {

struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;    // among the ranks of this machine: which GPU is ours
  std::string launcher;  // "torchrun", "mpirun", "srun", or "" for a world of one
  std::string address;   // where the ranks meet
  int port = 0;
  bool agent_store = false;  // torchrun itself holds the store; otherwise rank 0 does
  int restart = 0;           // torchrun's count of restarts
};

// Error that names the variable when one is missing, is no number, or contradicts another.
World world_from_environment();

// The first host of a Slurm list: "node[07-09,12],gpu1" -> "node07".
std::string first_host(const std::string& list);

}  // namespace lazy::train
