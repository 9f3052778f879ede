// Runs several ranks of one training run on this machine, either as processes or as threads.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "tiny_run.h"

namespace lazy::train {
using namespace distributed;

int free_port();

// Runs `lazy train ...` or another command as `count` processes. Sets the environment variables that a launcher such as
// torchrun would set.
class Ranks {
 public:
  Ranks(int count, const std::vector<std::string>& arguments, const std::filesystem::path& scratch,
        const std::string& command = "train");
  // Runs each rank with separate arguments. `max_file_bytes` limits the file size of the last rank only (see Child).
  Ranks(const std::vector<std::vector<std::string>>& arguments, const std::filesystem::path& scratch,
        const std::string& command = "train", int64_t max_file_bytes = 0);
  Child& operator[](int rank) { return children_[static_cast<size_t>(rank)]; }
  std::vector<Ended> wait();

 private:
  std::vector<Child> children_;
};

inline std::vector<Ended> run_ranks(int count, const std::vector<std::string>& arguments,
                                    const std::filesystem::path& scratch, const std::string& command = "train") {
  return Ranks(count, arguments, scratch, command).wait();
}

// Runs `count` ranks as threads of this process; each thread calls `body`. Exceptions of the threads are rethrown here.
void as_ranks(int count, const std::function<void(Communicator&)>& body,
              std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace lazy::train
