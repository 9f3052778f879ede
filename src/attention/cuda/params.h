// The arguments of every CUDA kernel, passed by value. They contain the Problem and its tensors in a form that device
// code can use.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention/cuda/softcap.cuh"
#include "lazy/attention_cuda.h"
#include "lazy/kernel_table.h"

namespace lazy::kernels::cuda {

// A tensor with strides in elements. The strides have 64 bits because a tensor may span more than 2^31 elements.
struct Tensor {
  void* data = nullptr;
  int64_t batch = 0, token = 0, head = 0, dim = 1;
};

template <typename View>
Tensor tensor(const View& view) {
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.batch, view.token, view.head, view.dim};
}

// Whether a kernel may load and store the tensor in units of 16 bytes (8 elements).
inline bool aligned(const Tensor& x) {
  return !x.data || (x.dim == 1 && x.token % 8 == 0 && x.head % 8 == 0 && x.batch % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
}

// Divides the workspace that begins at `base` into consecutive pieces, each aligned to 256 bytes. If `base` is null,
// all pieces are null, and only used() (the required size in bytes) is meaningful.
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
  float *lse, *stats, *score_stats;  // lse is written by the forward and read by the backward
  float *d_distance_bias, *d_tau, *d_sink, *d_alibi_slopes;
  const float *cos, *sin;  // RoPE tables of the backward (Backward::cos and sin in attention.h), or null
  // For the plain backward: two values per query row that the gradient of a score needs, `center` and 1 / `norm` (see
  // the definitions in weights.cuh). Shape (batch, heads, q_length) each.
  float *row_center, *row_norm;
  // For the other backward kernels: the row states (BackwardRowState in backward_sums.cuh), in the layout that
  // hopper_rows.cuh or portable_backward_sums.cuh defines.
  float* row_state;
  // Partial sums of d_tau, d_sink and d_alibi_slopes in the backward, shape (3, heads, batch * row tiles).
  float* partial;
  float* bias_slabs;  // partial gradients of the distance bias, shape (bias_splits, heads, bias_window)
  // fp32 sums of d_q, in the tile layout that hopper_backward_sums.cuh or portable_backward_sums.cuh defines.
  float* dq_sum;

  const int32_t *cu_q, *cu_k;  // cumulative lengths; null if sequences are not packed
  int sequences, batch, q_length, k_length, heads, kv_heads, head_dim, value_dim;
  int window, bias_window, bias_splits;
  float scale, sigmoid_bias;  // sigmoid_bias is NaN if the bias is -ln(number of visible keys)
  Softcap softcap;
  DType dtype;
  Normalizer normalizer;
  bool causal, per_visible, deterministic;
};

// Returns a bit mask of the normalizers in kNormalizers that satisfy the condition. It is computed at compile time, so
// that device code can test a property of a normalizer without reading the table kNormalizers.
template <typename Condition>
__host__ __device__ constexpr uint32_t normalizers_where(const Condition& condition) {
  uint32_t bits = 0;
  for (const NormalizerTraits& t : kNormalizers) bits |= (condition(t) ? 1u : 0u) << static_cast<int>(t.normalizer);
  return bits;
}
__host__ __device__ constexpr bool is_member(uint32_t members, Normalizer n) {
  return static_cast<unsigned>(n) < 32 && (members >> static_cast<unsigned>(n) & 1);
}
template <NormalizerFamily F>
__host__ __device__ constexpr bool in_family(Normalizer n) {
  constexpr uint32_t members = normalizers_where([](const NormalizerTraits& t) { return t.family == F; });
  return is_member(members, n);
}
__host__ __device__ constexpr bool takes_tau(Normalizer n) {
  constexpr uint32_t members = normalizers_where([](const NormalizerTraits& t) { return t.takes_tau; });
  return is_member(members, n);
}
__host__ __device__ constexpr bool takes_sink(Normalizer n) {
  constexpr uint32_t members = normalizers_where([](const NormalizerTraits& t) { return t.takes_sink; });
  return is_member(members, n);
}

Params make_params(const Problem& p, const Forward<float>& a);
Params make_params(const Problem& p, const Backward<float>& a);

// Returns an upper bound on the number of tiles of `size` query rows (or keys) per head. Each packed document begins
// with a new tile, and the bound is valid for any division into documents.
__host__ __device__ inline int tile_count(const Params& p, int tokens, int size) {
  return (tokens + size - 1) / size + (p.cu_q ? p.sequences : 0);
}

// Throws std::runtime_error with `what` in its message if the call failed.
void check(cudaError_t status, const char* what);

constexpr int kPlainRows = 64;  // query rows per tile in the plain kernels
constexpr int kBiasTile = 64;   // distances per block in the gradient of the distance bias

void plain_forward(const Params& p, cudaStream_t stream);
void plain_backward(const Params& p, cudaStream_t stream);
// Computes d_distance_bias from row_center and row_norm, without atomics.
void bias_gradient(const Params& p, cudaStream_t stream);
void sum_bias_slabs(const Params& p, cudaStream_t stream);
// Computes d_tau, d_sink and d_alibi_slopes as the sums of Params::partial, in a fixed order. tiles: size of the last
// axis of `partial`.
void reduce_partial(const Params& p, int tiles, cudaStream_t stream);

// Returns the head size rounded up to 64 or 128, as used in the shared memory of the Hopper kernels and in dq_sum. The
// columns beyond the head size are zero.
constexpr int hopper_columns(int head_dim) { return head_dim <= 64 ? 64 : 128; }

// Whether a tensor-core forward writes score_stats itself; otherwise score_statistics() computes them. The forward can
// write them only if it computes a sum of exponentials that contains only scores: a sink far above the scores would
// make their exponentials underflow. The forward for softmax_sink includes the sink from the beginning, but the forward
// for elastic_sink includes it only after the sweep over the keys. The tensor-core forward with a softcap writes
// neither score_stats nor alive_sum.
inline bool writes_score_stats(const Params& p) {
  return in_family<NormalizerFamily::exponential>(p.normalizer) &&
         (takes_tau(p.normalizer) || !takes_sink(p.normalizer)) && !p.softcap;
}
// Computes score_stats for the problems that the tensor-core forward does not cover, with a separate sweep over the
// keys.
void score_statistics(const Params& p, cudaStream_t stream);

// Whether rows see so few keys that the Hopper forward for elastic and elastic_sink can compute the scores once instead
// of twice.
bool fits_single_pass(const Params& p);
void hopper_forward_single_pass(const Params& p, cudaStream_t stream);
// With up to this number of keys, the backward computes the center of each row (weights.cuh) as a sum over the keys in
// fp32, and not from the 16-bit tensors `out` and alive_sum. With so few keys, one key may have nearly all of the
// weight in every row. The difference between the gradient of its weight and the center would then consist mostly of
// the rounding errors of `out` and alive_sum.
constexpr int kFewKeys = 256;
// Whether the tensor-core forward writes alive_sum (if the pointer is given) and the backward uses it. alive_sum is the
// sum of the rows of V whose weight is not zero.
inline bool writes_alive_sum(const Params& p) {
  return takes_tau(p.normalizer) && p.head_dim <= kMaxAliveSumHead && p.k_length > kFewKeys && !p.softcap;
}
// Whether the backward computes the centers from the rounded tensors `out` and alive_sum (backward_sums.cuh). Elastic
// and elastic_sink require that the forward wrote alive_sum. The other normalizers require that no gradient that is
// stored in fp32 (sink, distance bias, ALiBi slopes) is requested, because these gradients need more precise centers.
inline bool has_rounded_sums(const Params& p) {
  if (p.deterministic || !p.out.data) return false;
  if (takes_tau(p.normalizer)) return p.alive_sum.data && writes_alive_sum(p);
  return in_family<NormalizerFamily::exponential>(p.normalizer) && !p.d_sink && !p.d_distance_bias &&
         !p.d_alibi_slopes && p.k_length > kFewKeys;
}
// Number of keys per block in the portable and in the Hopper backward. Each block writes one part of
// Params::bias_slabs, its sums for the gradient of the distance bias.
constexpr int portable_keys(int head_dim) { return head_dim <= 64 ? 128 : 64; }
constexpr int kHopperKeys = 128;

}  // namespace lazy::kernels::cuda
