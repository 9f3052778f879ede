// How much memory a training step needs on each GPU, part by part, from the shapes alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/language_model.h"
#include "train/sharding.h"

namespace lazy::train {

struct MemoryQuestion {
  ModelConfig model;
  int64_t batch_size = 1, seq_len = 1;
  int64_t accumulation = 1;  // micro-batches a step on each rank
  int64_t ranks = 1;
  bool bf16 = true;
  bool gpu = true;  // a GPU keeps less: norms and SwiGLU are made again
  Sharding sharding = Sharding::replicate;
  Checkpointing checkpointing = Checkpointing::none;
};

struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
};

// What exists at once when the backward pass begins: training state, then what the forward pass has kept. The order is
// that in which it comes into being. Allocator rounding and CUDA's own context are not in it.
std::vector<MemoryPart> state_parts(const MemoryQuestion& question);
std::vector<MemoryPart> activation_parts(const MemoryQuestion& question);
// How many weights the layers' products have, of all layers together: under full sharding these are gathered in the
// computing precision.
int64_t product_weights(const ModelConfig& model);
// What comes and goes beside that, one after the other: the peak holds the largest of these.
std::vector<MemoryPart> passing_parts(const MemoryQuestion& question);
// The sum of the former and the largest of the latter.
int64_t peak_bytes(const MemoryQuestion& question);

}  // namespace lazy::train
