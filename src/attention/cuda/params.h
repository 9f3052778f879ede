// The arguments of every CUDA kernel, passed by value: the Problem and its tensors in a form that device code can use.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention/cuda/softcap.cuh"
#include "lazy/attention_cuda.h"
#include "lazy/kernel_table.h"

namespace lazy::kernels::cuda {

// Strides in elements, 64 bits: a tensor may span more than 2^31 elements.
struct Tensor {
  void* data = nullptr;
  int64_t batch = 0, token = 0, head = 0, dim = 1;
};

template <typename View>
Tensor tensor(const View& view) {
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.batch, view.token, view.head, view.dim};
}

// Whether a kernel may move 16 bytes of it (8 elements) at a time.
inline bool aligned(const Tensor& x) {
  return !x.data || (x.dim == 1 && x.token % 8 == 0 && x.head % 8 == 0 && x.batch % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
}

// Hands out pieces of the workspace; with a null base it only measures.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T>
  void take(T*& piece, int64_t count) {
    piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

struct Params {
  Tensor q, k, v, out, alive_sum, d_out, d_q, d_k, d_v;
  const float *distance_bias, *tau, *sink, *alibi_slopes;
  float *lse, *stats, *score_stats;  // lse: written by forward, read by backward
  float *d_distance_bias, *d_tau, *d_sink, *d_alibi_slopes;
  const float *cos, *sin;  // of Backward, or null
  // The plain backward, (batch, heads, q_length) each: center and 1 / norm of weights.cuh.
  float *row_center, *row_norm;
  // The others: RowState of backward_sums.cuh, laid out as hopper_rows.cuh or portable_backward_sums.cuh says.
  float* row_state;
  // Backward's partial sums of d_tau, d_sink, d_alibi_slopes: (3, heads, batch * row tiles).
  float* partial;
  float* bias_slabs;  // (bias_splits, heads, bias_window)
  // fp32 sums of d_q, in tiles as hopper_backward_sums.cuh or portable_backward_sums.cuh says.
  float* dq_sum;

  const int32_t *cu_q, *cu_k;  // null when not packed
  int sequences, batch, q_length, k_length, heads, kv_heads, head_dim, value_dim;
  int window, bias_window, bias_splits;
  float scale, sigmoid_bias;  // sigmoid_bias NaN: -ln(visible count)
  Softcap softcap;
  DType dtype;
  Normalizer normalizer;
  bool causal, per_visible, deterministic;
};

// Whether kNormalizers lists the normalizer in family F. A value that it does not list is in no family.
template <NormalizerFamily F>
__host__ __device__ constexpr bool in_family(Normalizer n) {
  constexpr uint32_t members = [] {
    uint32_t bits = 0;
    for (const NormalizerTraits& t : kNormalizers) bits |= (t.family == F ? 1u : 0u) << static_cast<int>(t.normalizer);
    return bits;
  }();
  return static_cast<unsigned>(n) < 32 && (members >> static_cast<unsigned>(n) & 1);
}

Params make_params(const Problem& p, const Forward<float>& a);
Params make_params(const Problem& p, const Backward<float>& a);

// Row tiles (or key tiles) of `size` tokens a head that any problem of this shape can need; packed documents each start
// a tile of their own.
__host__ __device__ inline int tile_count(const Params& p, int tokens, int size) {
  return (tokens + size - 1) / size + (p.cu_q ? p.sequences : 0);
}

// Throws std::runtime_error that names `what` unless the call succeeded.
void check(cudaError_t status, const char* what);

constexpr int kPlainRows = 64;  // rows of a tile of the plain kernels
constexpr int kBiasTile = 64;   // distances that one block of the bias gradient serves

void plain_forward(const Params& p, cudaStream_t stream);
void plain_backward(const Params& p, cudaStream_t stream);
// d_distance_bias, from the rows' sums; no atomics.
void bias_gradient(const Params& p, cudaStream_t stream);
void sum_bias_slabs(const Params& p, cudaStream_t stream);
// d_tau, d_sink, d_alibi_slopes from `partial`, whose last axis has `tiles` entries, in a fixed order.
void reduce_partial(const Params& p, int tiles, cudaStream_t stream);

// Columns that a row of a head takes in the Hopper kernels' shared memory, and in dQ's sums: blocks of 64, those beyond
// the head are zeros.
constexpr int hopper_columns(int head_dim) { return head_dim <= 64 ? 64 : 128; }

// Whether a tensor-core forward writes score_stats itself: where its exponentials are those of the scores alone. Beside
// a sink far above the scores theirs vanish, and its sum says nothing of them. With a softcap there is no instantiation
// that does, nor one that writes alive_sum.
inline bool writes_score_stats(const Params& p) {
  return (p.normalizer == Normalizer::softmax || p.normalizer == Normalizer::elastic) && !p.softcap;
}
// Of other rows: one sweep over the keys of its own.
void score_statistics(const Params& p, cudaStream_t stream);

// Whether rows see so few keys that elastic's Hopper forward computes their scores once instead of twice.
bool fits_single_pass(const Params& p);
void hopper_forward_single_pass(const Params& p, cudaStream_t stream);
// Up to this many keys centers are summed in fp32: one of few keys may hold nearly all of the mass of every row, and g
// - center would then consist of the rounding of out and alive_sum.
constexpr int kFewKeys = 256;
// Whether the tensor-core forward writes alive_sum if it is given, and the backward reads it.
inline bool writes_alive_sum(const Params& p) {
  return p.normalizer == Normalizer::elastic && p.head_dim <= kMaxAliveSumHead && p.k_length > kFewKeys && !p.softcap;
}
// Whether the backward takes centers from rounded sums (backward_sums.cuh). Exact ones are wanted for the gradients
// that are kept in fp32, unless the forward kept alive_sum.
inline bool has_rounded_sums(const Params& p) {
  if (p.deterministic || !p.out.data) return false;
  if (p.normalizer == Normalizer::elastic) return p.alive_sum.data && writes_alive_sum(p);
  return in_family<NormalizerFamily::exponential>(p.normalizer) && !p.d_sink && !p.d_distance_bias &&
         !p.d_alibi_slopes && p.k_length > kFewKeys;
}
// Keys of a block of the portable and of the Hopper backward: one slab of bias sums each.
constexpr int portable_keys(int head_dim) { return head_dim <= 64 ? 128 : 64; }
constexpr int kHopperKeys = 128;

}  // namespace lazy::kernels::cuda
