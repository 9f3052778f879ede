// Estimates the memory that a training step needs on each GPU, part by part, from the shapes alone.
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
  int64_t accumulation = 1;  // micro-batches per step on each rank
  int64_t ranks = 1;
  bool bf16 = true;
  bool fp8 = false;  // fp8 matrix products in the layers (training.precision); requires bf16
  bool gpu = true;   // a GPU saves less than a CPU for the backward pass: it recomputes norms and SwiGLU
  distributed::Sharding sharding = distributed::Sharding::replicate;
  Checkpointing checkpointing = Checkpointing::none;
};

struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
};

// Memory that is in use when the backward pass starts, in order of allocation. state_parts() returns the training state
// (weights, gradients and moments), activation_parts() the activations that the forward pass has saved. The rounding of
// the allocator and the CUDA context are not included.
std::vector<MemoryPart> state_parts(const MemoryQuery& query);
std::vector<MemoryPart> activation_parts(const MemoryQuery& query);
// Returns the sizes of short-lived buffers. Only the largest buffer contributes to the peak.
std::vector<MemoryPart> transient_parts(const MemoryQuery& query);
// Sum of the training state, the activations and the largest transient part.
int64_t peak_bytes(const MemoryQuery& query);

// Number of weights in the matrix products of all layers. Under full sharding, these weights are gathered in the
// compute dtype.
int64_t product_weights(const ModelConfig& model);

// Memory that a layer with a mixer other than attention saves for the backward pass. The amount is not derived for each
// mixer but measured: models with one and with two layers run on a short sequence on the CPU, and their allocations are
// counted.
struct MixerMemory {
  double per_token = 0;  // Bytes per token and layer that the forward pass saves, including norms, residuals and MLP.
  double per_layer = 0;  // Bytes per layer that do not depend on the number of tokens, namely concatenated weights.
  double transient_per_token = 0;  // Bytes per token that the backward pass of the layer allocates and frees.
};

// Measures with sequences of at most seq_len tokens. The result is cached.
MixerMemory measure_mixer_memory(const ModelConfig& model, int64_t seq_len, bool bf16);

}  // namespace lazy::train
