// Chunked form of the linear recurrences (model/mixers/recurrence) on tensor cores. Tensors are bf16, products of bf16
// accumulate in fp32, states are fp32. A chunk has 64 tokens. The functions take device pointers and only launch work
// on the stream; they do not allocate memory or synchronize. Results are bit-identical between runs. A failed launch
// throws std::runtime_error.
//
//   S_t = a_t S_{t-1} + k_t u_t^T,  o_t = scale S_t^T q_t,  a_t = exp(log_decay_t),
//   u_t = beta_t v_t, or with the delta rule beta_t (v_t - a_t S_{t-1}^T k_t);
//   without the delta rule, skip v_t may be added to o_t.
//
// B: batch, L: length, H: heads, G: groups of heads that share queries and keys, K: key_dim, V: value_dim, N: chunks.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lazy::ops::cuda {

constexpr int kChunk = 64;

// Lower bound of log decays. Its exponential is 0 at bf16 precision, and a sum of 64 of these bounds is still precise
// in fp32.
constexpr float kMinLogDecay = -100;

// A tensor (B, L, heads, dim) with its strides in elements. The last axis is contiguous; rows are aligned to 16 bytes.
struct RecurrenceRows {
  const __nv_bfloat16* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;
};

// Decays and other factors of the tokens of a chunk, for one head, that are needed to read the state. ChunkGates adds
// the decays that are needed to write to the state.
struct ReadGates {
  float sum[kChunk];  // inclusive prefix sums of the base-2 logarithms of the tokens' decays
  int32_t document[kChunk];
  float beta[kChunk];  // 0 after the last token of the sequence, otherwise Recurrence::beta (1 if it is null)
  // Decay from the state before the chunk to each token; the last entry is the decay to the end of the chunk.
  float read[kChunk];
};
struct ChunkGates : ReadGates {
  float write[kChunk];  // decay from each token to the end of the chunk
};

struct Recurrence {
  int64_t B, L, H, G, K, V;  // K is 64, 128 or 256; V is a multiple of 64
  int64_t first = 0;         // first sequence of a launch; the blocks with blockIdx.z = 0 process it
  float scale;
  bool delta;
  RecurrenceRows q, k, v, d_out;     // d_out is only used by the backward pass
  const float* log_decay = nullptr;  // (B, L, H), or (H) if constant_decay; null: no decay
  bool constant_decay = false;
  const float* beta = nullptr;           // (B, L, H); null: ones
  const int32_t* documents = nullptr;    // (L), document of each token; null: one document
  const float* skip = nullptr;           // (H); null: zeros
  const float* initial_state = nullptr;  // (B, H, K, V); null: zeros
  const float* d_final_state = nullptr;  // shape of initial_state

  // Workspace.
  ChunkGates* gates = nullptr;        // (B, N, H)
  __nv_bfloat16* inverse = nullptr;   // (B, N, H, 64, 64): see recurrence_matrices.cu; only with the delta rule
  __nv_bfloat16* pairs = nullptr;     // (B, N, H, 64, 64): q k^T with decays; only used by the backward pass
  __nv_bfloat16* states = nullptr;    // (B, N, H, K, V): state before each chunk
  __nv_bfloat16* u = nullptr;         // (B, L, H, V): u of each token; only with the delta rule
  __nv_bfloat16* d_states = nullptr;  // (B, N, H, K, V): gradient of the state after each chunk
  __nv_bfloat16* d_u = nullptr;       // (B, L, H, V): gradient of the product beta v

  __nv_bfloat16* out = nullptr;                  // (B, L, H, V)
  float* final_state = nullptr;                  // (B, H, K, V)
  __nv_bfloat16 *d_q = nullptr, *d_k = nullptr;  // (B, L, H, K): per head; the caller sums over the heads of a group
  // (B, L, H, V): gradient of v. Only used with beta or skip; otherwise the gradient of v is d_u.
  __nv_bfloat16* d_v = nullptr;
  float* d_skip = nullptr;                          // (B, L, H): contribution of each token; the caller adds them
  float *d_log_decay = nullptr, *d_beta = nullptr;  // (recurrence_slices(K), B, L, H): the caller adds the slices
  float* d_initial_state = nullptr;                 // (B, H, K, V)

  constexpr int64_t chunks() const { return (L + kChunk - 1) / kChunk; }
};

// Number of slices into which the gradient kernel divides the key dimension.
inline int64_t recurrence_slices(int64_t K) { return K > 128 ? K / 128 : 1; }

// Whether the current GPU has enough shared memory for key dimension K, with or without the delta rule.
bool recurrence_fits(int64_t K, bool delta);

// The kernels must be launched in this order. Forward pass: gates, matrices (only with the delta rule), states,
// outputs. Backward pass (with out = null): gates, matrices, states, state gradients, gradients.
void recurrence_gates(const Recurrence& arguments, cudaStream_t stream);
void recurrence_matrices(const Recurrence& arguments, cudaStream_t stream);
void recurrence_states(const Recurrence& arguments, cudaStream_t stream);
void recurrence_outputs(const Recurrence& arguments, cudaStream_t stream);
void recurrence_state_gradients(const Recurrence& arguments, cudaStream_t stream);
void recurrence_gradients(const Recurrence& arguments, cudaStream_t stream);

}  // namespace lazy::ops::cuda
