// The ranks of a run talk to each other: collectives on tensors, over PyTorch's own c10d (Gloo for CPU tensors, NCCL
// for CUDA tensors). Every rank calls the same ones in the same order. A rank that ends or hangs ends all others, with
// a message that names it. In a world of one nothing is sent and nothing waits.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/distributed/world.h"

namespace lazy::train {

class Communicator {
 public:
  // Meets the other ranks. RunError that names the missing ones after `timeout`, which also limits each later wait.
  Communicator(World world, at::Device device, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const World& world() const;
  int rank() const { return world().rank; }
  int size() const { return world().size; }
  bool first() const { return rank() == 0; }  // the rank that writes

  // A collective that has begun. wait() returns when its result may be used (CUDA: by later work of the current
  // stream).
  class Handle {
   public:
    struct Pending;
    Handle() = default;
    explicit Handle(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}
    void wait();

   private:
    std::shared_ptr<Pending> pending_;
  };

  // Contiguous tensors of one type. Sums; `whole` has size() equal parts, the r-th of which is rank r's.
  Handle all_reduce(at::Tensor tensor);
  Handle reduce_scatter(at::Tensor part, at::Tensor whole);
  Handle all_gather(at::Tensor whole, at::Tensor part);
  Handle broadcast(at::Tensor tensor, int from = 0);
  // All ranks have come here. `what` says for what, in the message about one that did not.
  void barrier(const char* what);

  // Sums over the ranks of a few numbers (fp64).
  std::vector<double> sum(const std::vector<double>& values);
  // Rank 0's text, on all ranks.
  std::string broadcast(const std::string& text);

  // In a thread beside training, without the collectives: each rank passes what went wrong there, or "". Returns when
  // all have called it: a failure that one of them passed, or "".
  std::string agree(const std::string& failure);

  // Around anything that waits for other ranks: `what` names it, `limit` applies from here on.
  class Waiting {
   public:
    Waiting(Communicator& communicator, const char* what);
    ~Waiting();

   private:
    Communicator& communicator_;
  };

  // Around a wait for this rank's own thread that may be in agree(): as long as that takes, but no longer than the
  // other ranks live, even where the thread hangs.
  class Blocked {
   public:
    explicit Blocked(Communicator& communicator);
    ~Blocked();

   private:
    Communicator& communicator_;
  };

  // What the messages say about this rank.
  void at_step(int64_t step);
  // This rank fails: the others end with this message.
  void announce(const std::string& failure) noexcept;
  // All ranks are done: waits for the last one. Without it the destructor just leaves.
  void finish();

 private:
  friend class Waiting;
  friend class Blocked;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::train
