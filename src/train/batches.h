// Micro-batches of token ids, read ahead on a thread of their own. What is read depends on the position alone, so the
// numbers of a run do not depend on how far ahead it reads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/read_ahead.h"
#include "data/sequences.h"

namespace lazy::train {

struct Batch {
  at::Tensor ids;                     // (batch, length) int64
  at::Tensor labels;                  // (batch, length) int64: the next id, -100 at the last position (SPEC section 1)
  Batch to(at::Device device) const;  // from pinned memory nothing waits for the copy
};

// Sequences first, first + stride, ... of the stream, `batch_size` of them.
Batch read_batch(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t stride = 1,
                 bool pinned = false);

class Batches {
 public:
  // Starts reading at sequence `first`, at most `ahead` batches in advance, every `nth` micro-batch of the stream.
  // `sequences` must outlive this. `pinned`: into memory that a GPU copies from by itself.
  Batches(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t ahead, int64_t nth = 1,
          bool pinned = false);
  Batch next() { return ahead_.next().value(); }  // rethrows what reading threw

 private:
  ReadAhead<Batch> ahead_;
};

}  // namespace lazy::train
