#include "distributed/launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "core/stop.h"
#include "model/device.h"

namespace lazy::distributed {

namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int number(const char* name, int low, int high) {
  const auto text = variable(name);
  if (!text) fail("distributed", "environment variable {} is not set", name);
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
constexpr int kDefaultPort = 29500;  // the default port of PyTorch

// If MASTER_ADDR or MASTER_PORT is set, it takes precedence over the value that is derived from the launcher.
void set_rendezvous(RankInfo& info, const std::string& otherwise, int port, const char* why) {
  info.master_address = variable("MASTER_ADDR").value_or(otherwise);
  if (info.master_address.empty())
    fail("distributed", "environment variable MASTER_ADDR, the host of rank 0, is not set ({})", why);
  info.master_port = number_or("MASTER_PORT", 1, 65535, port);
}

RankInfo read_variables(const char* launcher, const char* rank, const char* size, const char* local_rank) {
  RankInfo info;
  info.launcher = launcher;
  info.size = number(size, 1, kMany);
  info.rank = number(rank, 0, info.size - 1);
  info.local_rank = number_or(local_rank, 0, kMany, 0);
  return info;
}

}  // namespace

std::string first_slurm_host(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end == std::string::npos ? end : end - bracket - 1);
}

RankInfo rank_info_from_environment() {
  if (variable("RANK") || variable("WORLD_SIZE")) {
    RankInfo info = read_variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK");
    info.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
    info.restart_count = number_or("TORCHELASTIC_RESTART_COUNT", 0, kMany, 0);
    if (info.size > 1) set_rendezvous(info, "", kDefaultPort, "RANK and WORLD_SIZE are set");
    return info;
  }
  if (variable("OMPI_COMM_WORLD_RANK") || variable("OMPI_COMM_WORLD_SIZE")) {
    RankInfo info =
        read_variables("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
    const bool one_machine = number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMany, 0) == info.size;
    if (info.size > 1) {
      set_rendezvous(info, one_machine ? "127.0.0.1" : "", kDefaultPort,
                     "use mpirun -x MASTER_ADDR=HOST to set it on all ranks");
    }
    return info;
  }
  // SLURM_PROCID and SLURM_NTASKS are also set in the batch script, which is not a rank. SLURM_STEP_NUM_TASKS is set
  // only in job steps.
  if (variable("SLURM_PROCID") && variable("SLURM_STEP_NUM_TASKS")) {
    RankInfo info = read_variables("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID");
    const auto hosts = variable("SLURM_STEP_NODELIST");
    // Jobs that share a machine need different ports.
    const int port = 20000 + number_or("SLURM_JOB_ID", 0, 2147483647, 0) % 10000;
    if (info.size > 1)
      set_rendezvous(info, hosts ? first_slurm_host(*hosts) : "", port, "SLURM_STEP_NODELIST is not set either");
    return info;
  }
  return {};
}

namespace {

// Returns the device of this rank. For "cuda", the GPU of this rank also becomes the current device.
at::Device device_of(const std::string& name, const RankInfo& info) {
  if (name != "cuda") return at::kCPU;
  const int64_t count = device_count(name);
  if (info.local_rank >= count) {
    fail("train", "each rank needs its own GPU, but local rank {} has none: expected at most {} ranks on this machine",
         info.local_rank, count);
  }
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(info.local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

}  // namespace

void run_as_rank(const RankInfo& info, const std::string& device_name, std::chrono::milliseconds timeout,
                 const std::function<void(Communicator&, const std::string& device)>& body) {
  if (info.rank > 0) log::set_level(2);  // Only rank 0 writes informational messages.
  // Writing to a rank that has just terminated must return an error, which is reported. Without this line SIGPIPE would
  // end the process silently.
  if (info.size > 1) std::signal(SIGPIPE, SIG_IGN);
  const at::Device device = device_of(device_name, info);
  Communicator communicator(info, device, timeout);
  const auto of_rank = [&](const Error& e) {
    return info.rank == 0 ? e.what() : fmt::format("rank {}: {}", info.rank, e.what());
  };
  try {
    body(communicator, device.str());
    communicator.shutdown();
  } catch (const Interrupted& e) {
    communicator.shutdown();  // Launchers kill the remaining ranks when one rank ends, and rank 0 may still be writing.
    throw Interrupted(of_rank(e), e.exit_code() - 128);
  } catch (const Error& e) {
    communicator.report_failure(of_rank(e));
    if (e.exit_code() == 1) throw RunError(of_rank(e));
    throw Error(of_rank(e));
  } catch (const std::exception& e) {
    communicator.report_failure(fmt::format("rank {}: {}", info.rank, e.what()));
    throw;
  }
}

}  // namespace lazy::distributed
