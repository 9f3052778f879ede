// The neural memory of Titans (arXiv 2501.00663) as a recurrence over time: an MLP per head, trained online with
// momentum and weight decay to map k to v, and evaluated at q.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "model/mixers/chunked_scan.h"
#include "model/mixers/packed_layouts.h"

namespace lazy {

// MLP(x) = gelu(... gelu(x W_1) ...) W_depth, exact GELU, no biases; depth 1 is linear. Layer n: (batch, heads, in,
// out). M(x) is MLP(x), or x + LayerNorm(MLP(x)) norm if there is a norm, (heads, dim), which is not updated online (as
// in titans-pytorch, where the norm is updated too, and in TTT's models). With the norm, steps that enlarge the MLP's
// outputs reduce later gradients. Without it, growing weights make steps overshoot, and the outer gradient through many
// such steps grows from chunk to chunk.
using MemoryWeights = std::vector<at::Tensor>;

struct MemoryInputs {
  at::Tensor q, k, v;       // (batch, length, heads, dim)
  at::Tensor step;          // theta (batch, length, heads)
  at::Tensor log_momentum;  // log eta, same shape; logarithms because products of many gates are taken
  at::Tensor log_keep;      // log(1 - alpha), same shape
  at::Tensor norm = {};     // of M; undefined: none
  bool rounded = false;     // see FastWeights
  bool last_state = true;   // false: the returned state is not the one after the last token
  bool raw = false;         // q, k, v of any floating type, also the outputs'; q and k are given unit length first
};

// The recurrent state; its size does not depend on the length.
struct MemoryState {
  MemoryWeights weights;       // M_t
  MemoryWeights momentum;      // S_t
  MemoryWeights base;          // M at the start of the current chunk, where gradients are evaluated
  int64_t chunk_position = 0;  // number of tokens seen of the current chunk
};

// The state before the first token, with zero momentum. weights: without the batch dimension, (heads, in, out).
MemoryState initial_memory_state(const MemoryWeights& weights, int64_t batch);

// Flattens a state to a list (weights, momentum, base) and back.
std::vector<at::Tensor> tensors(const MemoryState& state);
MemoryState memory_state(const std::vector<at::Tensor>& tensors, int64_t seen);

// M(x) with constant weights, of this type: x (batch, length, heads, dim). Of a 16-bit type, products are rounded as
// in FastWeights.
at::Tensor recall(const MemoryWeights& weights, const at::Tensor& norm, const at::Tensor& x, at::ScalarType type);

// M_t(q_t), (batch, length, heads, dim), and the state after the last token, of
//   S_t = eta_t S_{t-1} - theta_t grad |M_base(k_t) - v_t|^2,  M_t = (1 - alpha_t) M_{t-1} + S_t,
// Without a norm, the squared error is continued linearly beyond a length of sqrt(dim), which bounds the gradient.
// cu_seqlens (documents + 1), optional: each document starts from `state`, which must be an initial state and is
// returned unchanged. Inputs and state have the same dtype, float64 or fp32.
//
// Uses the chunkwise dual form, which does not materialize per-token weights. Differentiable through the inner steps.
std::tuple<at::Tensor, MemoryState> memory_chunks(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                  const at::Tensor& cu_seqlens = {});

// The outputs only, for packed documents laid out in batches of whole chunks.
at::Tensor memory_packed(const MemoryInputs& in, const MemoryState& state, int64_t chunk,
                         const DocumentBatches& documents);

// The same for one span, for mixers whose inputs depend on earlier outputs. tokens: the inputs in the order of
// MemoryInputs, (batch, heads, T, ...) each. `state`, as a list, is replaced by the state after the span.
at::Tensor memory_piece(const ChunkSpan& piece, const std::vector<at::Tensor>& tokens, const at::Tensor& norm,
                        std::vector<at::Tensor>& state, bool rounded, bool raw);

}  // namespace lazy
