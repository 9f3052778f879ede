// Collectives on tensors over PyTorch's c10d (Gloo for CPU tensors, NCCL for CUDA tensors). Every rank calls the same
// collectives in the same order. A rank that ends or hangs ends all others with a message that names it. With a world
// size of 1 every call returns at once.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/torch_forward.h"

namespace lazy::distributed {

// Identity of this process in the process group, see rank_info_from_environment.
struct RankInfo {
  int rank = 0;
  int size = 1;                // world size
  int local_rank = 0;          // among the ranks of this machine: index of the GPU
  std::string launcher;        // "torchrun", "mpirun", "srun", or "" with a world size of 1
  std::string master_address;  // host and port of the rendezvous store
  int master_port = 0;
  bool agent_store = false;  // torchrun's agent hosts the store; otherwise rank 0 does
  int restart_count = 0;     // torchrun's
};

class Communicator {
 public:
  // Connects to the other ranks. RunError that names the missing ones after `timeout`, which also limits each later
  // wait.
  Communicator(RankInfo info, at::Device device, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const RankInfo& info() const;
  int rank() const { return info().rank; }
  int size() const { return info().size; }
  bool is_rank0() const { return rank() == 0; }

  // An asynchronous collective. wait() returns when its result may be used (CUDA: by later work of the current stream).
  class Work {
   public:
    struct Pending;
    Work() = default;
    explicit Work(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}
    void wait();

   private:
    std::shared_ptr<Pending> pending_;
  };

  // Collectives on contiguous tensors of one type; reductions are sums. Of reduce_scatter's input and all_gather's
  // output, the r-th of size() equal parts belongs to rank r.
  Work all_reduce(at::Tensor tensor);
  Work reduce_scatter(at::Tensor output, at::Tensor input);
  Work all_gather(at::Tensor output, at::Tensor input);
  Work broadcast(at::Tensor tensor, int root = 0);
  // Returns when all ranks have called it. `what` names the barrier in the message about a missing rank.
  void barrier(const char* what);

  // Sums of a few numbers (fp64) over the ranks.
  std::vector<double> sum(const std::vector<double>& values);
  // Rank 0's text, on all ranks.
  std::string broadcast(const std::string& text);

  // A barrier for a background thread that does not interfere with the training thread's collectives. Each rank passes
  // its failure, or ""; every rank returns the first failure passed, or "".
  std::string background_barrier(const std::string& failure);

  // Scope of a wait for other ranks: the watchdog's timeout starts with it, and `what` names it in messages.
  class WaitScope {
   public:
    WaitScope(Communicator& communicator, const char* what);
    ~WaitScope();

   private:
    Communicator& communicator_;
  };

  // Scope of a wait for this rank's background thread, which may be in background_barrier(). It has no timeout, but
  // the process still ends when another rank has failed.
  class JoinScope {
   public:
    explicit JoinScope(Communicator& communicator);
    ~JoinScope();

   private:
    Communicator& communicator_;
  };

  // The training step that messages about this rank name.
  void set_step(int64_t step);
  // This rank fails: the others end with this message.
  void report_failure(const std::string& failure) noexcept;
  // Waits until all ranks are done. Without it the destructor leaves without waiting.
  void shutdown();

 private:
  friend class WaitScope;
  friend class JoinScope;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::distributed
