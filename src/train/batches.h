// Micro-batches of token ids, prefetched by a background thread. A batch depends only on its position in the stream, so
// the results of a run do not depend on the prefetch depth.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/read_ahead.h"
#include "data/sequences.h"

namespace lazy::train {

struct Batch {
  at::Tensor ids;                     // (batch, length) int64
  at::Tensor labels;                  // (batch, length) int64: the next token id; -100 (ignored) at the last position
  Batch to(at::Device device) const;  // The copy from pinned memory is asynchronous.
};

// Reads `batch_size` sequences, at the positions first, first + stride, ... of the data stream.
Batch read_batch(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t stride = 1,
                 bool pinned = false);

class Batches {
 public:
  // Reads from sequence `first` on and prefetches at most `prefetch` batches. Only every `nth` micro-batch of the
  // stream is read, where `nth` is the number of ranks. `sequences` must outlive this object. `pinned`: allocate pinned
  // memory.
  Batches(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t prefetch,
          int64_t nth = 1, bool pinned = false);
  Batch next() { return ahead_.next().value(); }  // Rethrows exceptions of the background thread.

 private:
  ReadAhead<Batch> ahead_;
};

}  // namespace lazy::train
