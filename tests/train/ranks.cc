#include "ranks.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <thread>

namespace lazy::train {
namespace fs = std::filesystem;

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

Ranks::Ranks(int count, const std::vector<std::string>& arguments, const fs::path& scratch, const std::string& command)
    : Ranks(std::vector(static_cast<size_t>(count), arguments), scratch, command) {}

Ranks::Ranks(const std::vector<std::vector<std::string>>& arguments, const fs::path& scratch,
             const std::string& command, int64_t max_file_bytes) {
  const std::string port = std::to_string(free_port()), count = std::to_string(arguments.size());
  for (size_t rank = 0; rank < arguments.size(); ++rank) {
    const fs::path folder = scratch / ("rank-" + std::to_string(rank));
    fs::create_directories(folder);
    children_.emplace_back(
        arguments[rank], folder, rank + 1 == arguments.size() ? max_file_bytes : 0,
        Child::Environment{
            {"RANK", std::to_string(rank)}, {"WORLD_SIZE", count}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}},
        command);
  }
}

std::vector<Ended> Ranks::wait() {
  std::vector<Ended> out;
  for (Child& child : children_) out.push_back(child.wait());
  return out;
}

void as_ranks(int count, const std::function<void(Communicator&)>& body, std::chrono::milliseconds timeout) {
  // PyTorch 2.11 has a recorder of collectives in c10d, which adds each process group to a map without holding its lock
  // (FlightRecorderDetail.hpp). `lazy train` has one group per process. Here, several threads create groups at the same
  // time, so the recorder is disabled.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // PyTorch reads it when the first group is recorded
  // limits the duration of host name look-ups, as in the class Child
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);
  const int port = free_port();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankInfo info;
        info.rank = rank;
        info.size = count;
        info.master_address = "127.0.0.1";
        info.master_port = port;
        Communicator communicator(info, at::kCPU, timeout);
        body(communicator);
        communicator.shutdown();
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lazy::train
