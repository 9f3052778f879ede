#include "train/distributed/world.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "core/error.h"

namespace lazy::train {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int number(const char* name, int low, int high) {
  const auto text = variable(name);
  if (!text) fail("distributed", "the environment lacks {}", name);
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, code] = std::from_chars(text->data(), end, value);
  if (code != std::errc() || stop != end || value < low || value > high) {
    fail("distributed", "{}: expected a number from {} to {}, found '{}'", name, low, high, *text);
  }
  return value;
}

int number_or(const char* name, int low, int high, int otherwise) {
  return variable(name) ? number(name, low, high) : otherwise;
}

constexpr int kMany = 1 << 20;
constexpr int kDefaultPort = 29500;  // PyTorch's own

// All launchers let MASTER_ADDR and MASTER_PORT decide where they are given.
void meet(World& world, const std::string& otherwise, int port, const char* why) {
  world.address = variable("MASTER_ADDR").value_or(otherwise);
  if (world.address.empty()) fail("distributed", "the environment lacks MASTER_ADDR, the host of rank 0 ({})", why);
  world.port = number_or("MASTER_PORT", 1, 65535, port);
}

World from(const char* launcher, const char* rank, const char* size, const char* local_rank) {
  World world;
  world.launcher = launcher;
  world.size = number(size, 1, kMany);
  world.rank = number(rank, 0, world.size - 1);
  world.local_rank = number_or(local_rank, 0, kMany, 0);
  return world;
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end == std::string::npos ? end : end - bracket - 1);
}

World world_from_environment() {
  if (variable("RANK") || variable("WORLD_SIZE")) {
    World world = from("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK");
    world.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
    world.restart = number_or("TORCHELASTIC_RESTART_COUNT", 0, kMany, 0);
    if (world.size > 1) meet(world, "", kDefaultPort, "RANK and WORLD_SIZE are set");
    return world;
  }
  if (variable("OMPI_COMM_WORLD_RANK") || variable("OMPI_COMM_WORLD_SIZE")) {
    World world = from("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
    const bool one_machine = number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMany, 0) == world.size;
    if (world.size > 1) {
      meet(world, one_machine ? "127.0.0.1" : "", kDefaultPort, "mpirun -x MASTER_ADDR=HOST gives it to all ranks");
    }
    return world;
  }
  // Of a job step: a batch script, which runs once, has SLURM_PROCID and SLURM_NTASKS as well.
  if (variable("SLURM_PROCID") && variable("SLURM_STEP_NUM_TASKS")) {
    World world = from("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID");
    const auto hosts = variable("SLURM_STEP_NODELIST");
    // Jobs that share a machine get ports of their own.
    const int port = 20000 + number_or("SLURM_JOB_ID", 0, 2147483647, 0) % 10000;
    if (world.size > 1) meet(world, hosts ? first_host(*hosts) : "", port, "SLURM_STEP_NODELIST is not set either");
    return world;
  }
  return {};
}

}  // namespace lazy::train
