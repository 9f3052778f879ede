// The neural memory of Titans (arXiv 2501.00663) as a recurrence over time: each head has an MLP that is trained
// online, with momentum and weight decay, to map k to v, and that is evaluated at q.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "model/mixers/chunked_scan.h"
#include "model/mixers/packed_layouts.h"

namespace lazy {

// The weights of MLP(x) = gelu(... gelu(x W_1) ...) W_depth, with exact GELU and without biases; with depth 1, the MLP
// is linear. The weights of layer n are (batch, heads, in, out).
//
// Without a norm, the memory is M(x) = MLP(x). With a norm (heads, dim), it is M(x) = x + LayerNorm(MLP(x)) * norm,
// where `norm` is not updated online (as in the models of TTT; titans-pytorch updates it online). With the norm, steps
// that enlarge the outputs of the MLP reduce later gradients. Without it, growing weights make the steps overshoot, and
// the outer gradient through many such steps grows from chunk to chunk.
using MemoryWeights = std::vector<at::Tensor>;

struct MemoryInputs {
  at::Tensor q, k, v;       // (batch, length, heads, dim)
  at::Tensor step;          // step size theta, (batch, length, heads)
  at::Tensor log_momentum;  // log(eta), with the momentum factor eta; same shape
  at::Tensor log_keep;      // log(1 - alpha), with the weight decay alpha; same shape
  at::Tensor norm = {};     // weight of the norm of M, (heads, dim); undefined: no norm
  bool rounded = false;     // true: matrix products may use TF32 (as FastWeights::rounded)
  bool last_state = true;   // if false, the final state is not computed; do not use the returned state
  // If true, q, k and v may have any floating-point dtype, which is also the dtype of the outputs, and q and k are
  // normalized to unit length first.
  bool raw = false;
};

// The recurrent state. Its size does not depend on the length.
struct MemoryState {
  MemoryWeights weights;       // weights of M after the latest token
  MemoryWeights momentum;      // momentum after the latest token
  MemoryWeights base;          // weights at the start of the current chunk, where the gradients are computed
  int64_t chunk_position = 0;  // number of tokens of the current chunk that were processed so far
};

// Returns the state before the first token, with zero momentum. `weights` has the shapes (heads, in, out), without the
// batch dimension.
MemoryState initial_memory_state(const MemoryWeights& weights, int64_t batch);

// tensors() converts a state to the list (weights, momentum, base). memory_state() is the inverse; its argument `seen`
// becomes MemoryState::chunk_position.
std::vector<at::Tensor> tensors(const MemoryState& state);
MemoryState memory_state(const std::vector<at::Tensor>& tensors, int64_t seen);

// Returns M(x) for x (batch, length, heads, dim), with weights that do not change from token to token. The result has
// dtype `type`. For a 16-bit `type`, matrix products may use TF32, as with FastWeights::rounded.
at::Tensor recall(const MemoryWeights& weights, const at::Tensor& norm, const at::Tensor& x, at::ScalarType type);

// Returns M_t(q_t), (batch, length, heads, dim), and the state after the last token, for the recurrence
//  S_t = eta_t S_{t-1} - theta_t grad |M_base(k_t) - v_t|^2,  M_t = (1 - alpha_t) M_{t-1} + S_t.
// Here M_base is the memory with the weights at the start of the chunk. Without a norm, the squared error is replaced
// by its linear continuation for errors longer than sqrt(dim), which bounds the gradient. If cu_seqlens (documents + 1)
// is defined, each document starts from `state`, which must be an initial state and is returned unchanged. Inputs and
// state have the same dtype, float64 or fp32.
//
// The function uses the chunkwise dual form, which does not materialize per-token weights. The outputs are
// differentiable with respect to all inputs, including the effect of the inputs on the memory's gradient steps.
std::tuple<at::Tensor, MemoryState> memory_chunks(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                  const at::Tensor& cu_seqlens = {});

// Returns the same outputs as memory_chunks, but no state, for packed documents. Documents are padded to whole chunks
// and processed in the batches of `documents`.
at::Tensor memory_packed(const MemoryInputs& in, const MemoryState& state, int64_t chunk,
                         const DocumentBatches& documents);

// Returns the outputs of one span of tokens, for mixers whose inputs depend on earlier outputs. `tokens` contains the
// inputs in the order of MemoryInputs, each (batch, heads, T, ...). `state`, in the form of tensors(), is replaced by
// the state after the span.
at::Tensor memory_piece(const ChunkSpan& piece, const std::vector<at::Tensor>& tokens, const at::Tensor& norm,
                        std::vector<at::Tensor>& state, bool rounded, bool raw);

}  // namespace lazy
