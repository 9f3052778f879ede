// Micro-batches of token ids, prefetched by a background thread. A batch depends on its position only, so a run's
// numbers do not depend on the depth of prefetch.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/read_ahead.h"
#include "data/sequences.h"

namespace lazy::train {

struct Batch {
  at::Tensor ids;                     // (batch, length) int64
  at::Tensor labels;                  // (batch, length) int64: the next id; -100 (ignored) at the last position
  Batch to(at::Device device) const;  // asynchronous from pinned memory
};

// The `batch_size` sequences first, first + stride, ... of the stream.
Batch read_batch(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t stride = 1,
                 bool pinned = false);

class Batches {
 public:
  // Reads from sequence `first` on, at most `prefetch` batches ahead, every `nth` micro-batch of the stream (one of
  // `nth` ranks). `sequences` must outlive this object. `pinned`: into pinned memory.
  Batches(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t prefetch,
          int64_t nth = 1, bool pinned = false);
  Batch next() { return ahead_.next().value(); }  // rethrows what reading threw

 private:
  ReadAhead<Batch> ahead_;
};

}  // namespace lazy::train
