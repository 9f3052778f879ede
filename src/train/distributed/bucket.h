// Gradients of several parameters in one flat fp32 tensor, so that few large messages are sent.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "train/distributed/communicator.h"

namespace lazy::train {

struct Bucket {
  struct Slot {
    size_t parameter = 0;  // index into the list of parameters
    int64_t begin = 0, numel = 0;
    at::Tensor tensor;    // the parameter
    bool filled = false;  // its gradient of this step is in `flat`
    bool ready = false;   // and is complete
  };
  std::vector<Slot> slots;
  int64_t numel = 0;   // of all slots
  int64_t padded = 0;  // a multiple of the ranks
  at::Tensor flat;     // gradients; the slots' grad() are views of it
  at::Tensor share;    // where they are sharded: this rank's part, after the sum
  Communicator::Handle handle;

  // The slot's part of a tensor in the bucket's layout, in the parameter's shape.
  at::Tensor view(const Slot& slot, const at::Tensor& whole) const;
  void allocate();
  // Moves the parameter's gradient in; nothing to do where it is a view already. Zeros where there is none.
  void fill(Slot& slot);
  bool complete() const;
};

// Parameters in reverse order, since backward produces the last ones' gradients first. The first bucket is small, so
// that the first message leaves early.
std::vector<Bucket> make_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes, int64_t ranks);

}  // namespace lazy::train
