// Collectives on tensors, implemented with PyTorch's c10d (Gloo for CPU tensors, NCCL for CUDA tensors). Every rank
// must call the same collectives in the same order. If a rank terminates or hangs, all other ranks terminate with a
// message that names it. With a world size of 1 every call returns immediately.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/torch_forward.h"

namespace lazy::distributed {

// Identity of this process in the process group; see rank_info_from_environment.
struct RankInfo {
  int rank = 0;
  int size = 1;                // world size
  int local_rank = 0;          // rank within this machine; also the index of the GPU
  std::string launcher;        // "torchrun", "mpirun", "srun", or "" with a world size of 1
  std::string master_address;  // host of the rendezvous store
  int master_port = 0;
  bool agent_store = false;  // true: the torchrun agent hosts the store; false: rank 0 hosts it
  int restart_count = 0;     // number of restarts by torchrun
};

class Communicator {
 public:
  // Connects to the other ranks. If ranks are missing after `timeout`, throws RunError with their numbers. The same
  // timeout applies to each later wait.
  Communicator(RankInfo info, at::Device device, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const RankInfo& info() const;
  int rank() const { return info().rank; }
  int size() const { return info().size; }
  bool is_rank0() const { return rank() == 0; }

  // An asynchronous collective. After wait() returns, the result can be used; on CUDA it can be used by subsequent work
  // on the current stream.
  class Work {
   public:
    struct Pending;
    Work() = default;
    explicit Work(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}
    void wait();

   private:
    std::shared_ptr<Pending> pending_;
  };

  // Collectives on contiguous tensors of one dtype. Reductions compute sums. The input of reduce_scatter and the output
  // of all_gather consist of size() equal parts, of which part r belongs to rank r.
  Work all_reduce(at::Tensor tensor);
  Work reduce_scatter(at::Tensor output, at::Tensor input);
  Work all_gather(at::Tensor output, at::Tensor input);
  Work broadcast(at::Tensor tensor, int root = 0);
  // Returns after all ranks have called this function. `what` names the barrier in the error message about a missing
  // rank.
  void barrier(const char* what);

  // Returns the element-wise sums of `values` over all ranks, computed in fp64. All ranks pass the same number of
  // values.
  std::vector<double> sum(const std::vector<double>& values);
  // Returns the text of rank 0 on all ranks.
  std::string broadcast(const std::string& text);

  // A barrier for a background thread. It does not interfere with the collectives of the training thread. Each rank
  // passes its error message, or "" on success. Every rank returns the first error message, or "" if no rank failed.
  std::string background_barrier(const std::string& failure);

  // Marks a scope in which this rank waits for other ranks. The timeout of the watchdog starts here, and `what` names
  // the wait in error messages.
  class WaitScope {
   public:
    WaitScope(Communicator& communicator, const char* what);
    ~WaitScope();

   private:
    Communicator& communicator_;
  };

  // Marks a scope in which the main thread waits for a background thread of this rank. The background thread may itself
  // wait in background_barrier(). The scope has no timeout, but the process still terminates if another rank has
  // failed.
  class JoinScope {
   public:
    explicit JoinScope(Communicator& communicator);
    ~JoinScope();

   private:
    Communicator& communicator_;
  };

  // Sets the training step that error messages about this rank mention.
  void set_step(int64_t step);
  // Reports that this rank has failed. The other ranks terminate with this message.
  void report_failure(const std::string& failure) noexcept;
  // Waits until all ranks have called shutdown(). Without this call the destructor does not wait.
  void shutdown();

 private:
  friend class WaitScope;
  friend class JoinScope;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::distributed
