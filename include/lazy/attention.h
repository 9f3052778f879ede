// The attention kernels without Torch: a struct that describes the problem, structs of raw pointers, entry points.
//
//   s_ij     = scale q_i . k_j + distance_bias[|pos_i - j|] - alibi_slope |pos_i - j|       (arXiv 2601.00919, eq. 4)
//              with a softcap c, c tanh(scale q_i . k_j / c) in place of scale q_i . k_j
//   p_i      = softmax(s_i);  weight_ij = max(p_ij + tau / c_i, 0)                          (eq. 5, "elastic")
//   out_i    = sum_j weight_ij v_j
//
// pos_i = i + k_length - q_length: the last query stands at the last key (bottom-right alignment), as a KV cache needs.
// c_i is the number of keys that query i sees. Indices are 0-based. The other normalizers: normalizers.h.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "lazy/normalizers.h"

namespace lazy::kernels {

enum class DType { f64, f32, bf16, f16 };
enum class Offset { per_visible, constant };  // tau / c_i, or tau

const char* name(DType dtype);

struct Problem {
  int64_t batch = 1;
  int64_t q_length = 0, k_length = 0;  // tokens per batch entry; packed: all tokens
  int64_t heads = 1, kv_heads = 1;     // heads is a multiple of kv_heads
  int64_t head_dim = 0, value_dim = 0;
  DType dtype = DType::f32;  // of q, k, v, out and their gradients
  double scale = 1;
  double softcap = 0;  // 0: none
  bool causal = true;
  int64_t window = -1;  // keys at distance < window only (both sides when not causal); -1: all
  Normalizer normalizer = Normalizer::softmax;
  Offset offset = Offset::per_visible;
  double sigmoid_bias = std::numeric_limits<double>::quiet_NaN();  // NaN: -ln(c_i)
  int64_t bias_window = 0;                                         // W, distance biases per head; 0: none
  bool alibi = false;                                              // slopes are given
  // Packed documents: sequences + 1 cumulative lengths each; batch is 1. Null: every batch entry is one sequence.
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  int64_t sequences = 0;
  int threads = 0;  // 0: OpenMP's default. Results do not depend on it.
};

// (batch, token, head, dim) with strides in elements; a packed tensor has batch = 1.
template <typename Void>
struct BasicView {
  Void* data = nullptr;
  int64_t batch = 0, token = 0, head = 0, dim = 1;
};
using View = BasicView<void>;
using ConstView = BasicView<const void>;

// Real is float, and double for the reference (DType::f64). Arrays of Real are contiguous.
template <typename Real>
struct Forward {
  ConstView q, k, v;
  const Real* distance_bias = nullptr;  // (heads, bias_window)
  const Real* tau = nullptr;            // (heads), normalizer elastic
  const Real* sink = nullptr;           // (heads), normalizer softmax_sink
  const Real* alibi_slopes = nullptr;   // (heads)
  View out;
  // Like out, or null: the sum of the alive keys' values, u_i = sum_j [weight_ij > 0] v_j. Written where
  // writes_alive_sum_cuda (attention_cuda.h) says so.
  View alive_sum;
  // (batch, heads, q_length), the row's statistic: natural log-sum-exp of the visible scores, with the sink's term for
  // softmax_sink; the threshold for sparsemax, weight = max(s - lse, 0), and entmax15, weight = max(s / 2 - lse, 0)^2;
  // unused for sigmoid. -inf for a row without a visible key.
  Real* lse = nullptr;
  // (3, batch, heads, q_length) or null: weight on the sequence's first key, 1 - sum of weights, alive keys.
  Real* stats = nullptr;
  // (2, batch, heads, q_length) or null. Of the row's visible scores s_i, whatever the normalizer makes of them: their
  // maximum, and the entropy of softmax(s_i) in nats,  ln sum_j exp(s_ij) - sum_j p_j s_ij,  p = softmax(s_i). A sink
  // is not a score. -inf and 0 for a row without a visible key; NaN where a score is NaN or +inf.
  Real* score_stats = nullptr;
};

// Inputs and outputs of a backward pass. Null outputs are not computed; the others are overwritten, never added to.
template <typename Real>
struct Backward {
  ConstView q, k, v, out, d_out;
  const Real* distance_bias = nullptr;
  const Real* tau = nullptr;
  const Real* sink = nullptr;
  const Real* alibi_slopes = nullptr;
  const Real* lse = nullptr;  // from the forward pass
  ConstView alive_sum;        // likewise, where it was written, or null
  View d_q, d_k, d_v;
  Real* d_distance_bias = nullptr;  // shapes of their tensors
  Real* d_tau = nullptr;
  Real* d_sink = nullptr;
  Real* d_alibi_slopes = nullptr;
  // Where rotates_back_cuda (attention_cuda.h) says so, or null: (q_length, head_dim / 2), by which pairs (n, n +
  // head_dim / 2) of q's and k's rows were rotated. d_q and d_k are those before the rotation.
  const float *cos = nullptr, *sin = nullptr;
};

// Why the fast kernels on the CPU do not serve this problem, as one line; empty when they do. For GPUs: kernel_table.h.
std::string unmet_condition(const Problem& problem);

// The fast kernels (src/attention/cpu): dtype f32, bf16 or f16, arithmetic in fp32. Memory is linear in the lengths.
// Throws std::invalid_argument with unmet_condition's text. Bit-identical for every number of threads.
void forward(const Problem& problem, const Forward<float>& arguments);
void backward(const Problem& problem, const Backward<float>& arguments);

namespace reference {
// The definition: float64, plain loops, every normalizer and layout. dtype f64.
void forward(const Problem& problem, const Forward<double>& arguments);
void backward(const Problem& problem, const Backward<double>& arguments);
}  // namespace reference

}  // namespace lazy::kernels
