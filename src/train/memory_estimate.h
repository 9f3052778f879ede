// An estimate of the memory that a training step needs on each GPU, part by part, from the shapes alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "distributed/sharding.h"
#include "model/language_model.h"

namespace lazy::train {

struct MemoryQuery {
  ModelConfig model;
  int64_t batch_size = 1, seq_len = 1;
  int64_t accumulation = 1;  // micro-batches a step on each rank
  int64_t ranks = 1;
  bool bf16 = true;
  bool fp8 = false;  // the products of the layers (training.precision), with bf16
  bool gpu = true;   // a GPU saves less for backward: it recomputes norms and SwiGLU
  distributed::Sharding sharding = distributed::Sharding::replicate;
  Checkpointing checkpointing = Checkpointing::none;
};

struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
};

// What exists at the start of the backward pass, in the order of allocation: training state, then saved activations.
// Excludes the allocator's rounding and CUDA's context.
std::vector<MemoryPart> state_parts(const MemoryQuery& query);
std::vector<MemoryPart> activation_parts(const MemoryQuery& query);
// Short-lived buffers; the peak contains the largest of them.
std::vector<MemoryPart> transient_parts(const MemoryQuery& query);
// State + activations + the largest transient part.
int64_t peak_bytes(const MemoryQuery& query);

// Number of weights in the matrix products of all layers: under full sharding they are gathered in the compute dtype.
int64_t product_weights(const ModelConfig& model);

// What a layer with another mixer than attention saves for backward. Measured rather than derived for each mixer: one
// layer runs on a short sequence on the CPU, and its allocations are counted.
struct MixerMemory {
  double per_token = 0;            // bytes a token and layer that the forward pass saves, with norms, residuals and MLP
  double per_layer = 0;            // bytes a layer independent of the tokens: concatenated weights
  double transient_per_token = 0;  // bytes a token that the layer's backward pass allocates and frees
};

// Cached after the first measurement. Sequences are no longer than seq_len.
MixerMemory measure_mixer_memory(const ModelConfig& model, int64_t seq_len, bool bf16);

}  // namespace lazy::train
