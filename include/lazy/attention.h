// Interface of the attention kernels. It does not depend on PyTorch: a struct describes the problem, further structs
// pass raw pointers, and functions run the kernels.
//
//   s_ij     = scale q_i . k_j + distance_bias[|pos_i - j|] - alibi_slope |pos_i - j|       (arXiv 2601.00919, eq. 4)
//              with a softcap c, the first term is c tanh(scale q_i . k_j / c)
//   p_i      = softmax(s_i);  weight_ij = max(p_ij + tau / c_i, 0)                          (eq. 5, "elastic")
//   out_i    = sum_j weight_ij v_j
//
// Key j is called alive in row i if its weight is nonzero, that is, if weight_ij > 0 in exact arithmetic. A NaN counts
// as alive.
//
// pos_i = i + k_length - q_length: the last query is at the position of the last key (bottom-right alignment), as
// decoding with a KV cache requires. c_i is the number of keys that query i sees. Indices are 0-based. normalizers.h
// lists the normalizers other than softmax and elastic.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "lazy/normalizers.h"

namespace lazy::kernels {

enum class DType { f64, f32, bf16, f16 };
enum class Offset { per_visible, constant };  // the offset of elastic: tau / c_i (per_visible) or tau (constant)

const char* name(DType dtype);

struct Problem {
  int64_t batch = 1;
  int64_t q_length = 0, k_length = 0;  // tokens per batch entry; with packed documents, tokens of all documents
  int64_t heads = 1, kv_heads = 1;     // numbers of query heads and of key-value heads; heads is a multiple of kv_heads
  int64_t head_dim = 0, value_dim = 0;
  DType dtype = DType::f32;  // element type of q, k, v, out and their gradients
  double scale = 1;
  double softcap = 0;  // 0: scores are not capped
  bool causal = true;
  int64_t window = -1;  // only keys at distance < window are visible (on both sides if not causal); -1: no limit
  Normalizer normalizer = Normalizer::softmax;
  Offset offset = Offset::per_visible;
  double sigmoid_bias = std::numeric_limits<double>::quiet_NaN();  // NaN: use -ln(c_i)
  int64_t bias_window = 0;  // number of distance biases per head; 0: no distance bias
  bool alibi = false;       // whether alibi_slopes are given
  // Packed documents: each array has sequences + 1 cumulative lengths, and batch is 1. Null: every batch entry is one
  // sequence.
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  int64_t sequences = 0;
  int threads = 0;  // 0: the default of OpenMP; the results do not depend on the number of threads
};

// A tensor of shape (batch, token, head, dim). The fields batch, token, head and dim are the strides of these axes in
// elements. A packed tensor has batch = 1.
template <typename Void>
struct BasicView {
  Void* data = nullptr;
  int64_t batch = 0, token = 0, head = 0, dim = 1;
};
using View = BasicView<void>;
using ConstView = BasicView<const void>;

// Arguments of a forward pass. Real is float for the kernels and double for the reference (DType::f64). Arrays of Real
// are contiguous.
template <typename Real>
struct Forward {
  ConstView q, k, v;
  const Real* distance_bias = nullptr;  // shape (heads, bias_window)
  const Real* tau = nullptr;            // shape (heads), for normalizers that take tau
  const Real* sink = nullptr;           // shape (heads), for normalizers that take a sink
  const Real* alibi_slopes = nullptr;   // shape (heads)
  View out;
  // For each row, the sum of the rows of V whose weight is nonzero, u_i = sum_j [weight_ij > 0] v_j. It has the shape
  // of `out`, or is null. The kernel writes it if writes_alive_sum_cuda (attention_cuda.h) returns true.
  View alive_sum;
  // One statistic per row, shape (batch, heads, q_length). For the exponential family, it is the natural log-sum-exp of
  // the visible scores and, if the normalizer takes one, the sink. For softpick, it is the logarithm of the
  // denominator. For sparsemax and entmax15, it is the threshold; the weights are max(s - lse, 0) for sparsemax and
  // max(s / 2 - lse, 0)^2 for entmax15. For sigmoid, it is unused. It is -inf for a row without a visible key.
  Real* lse = nullptr;
  // Three statistics per row, shape (3, batch, heads, q_length), or null: the weight on the sequence's first key, 1 -
  // the sum of the row's weights, and the number of keys with nonzero weight.
  Real* stats = nullptr;
  // Two statistics of the visible scores s_i of each row, shape (2, batch, heads, q_length), or null: the maximum, and
  // the entropy of p = softmax(s_i) in nats, which is ln sum_j exp(s_ij) - sum_j p_j s_ij. They do not depend on the
  // normalizer, and the sink is not counted as a score. The values are -inf and 0 for a row without a visible key, and
  // NaN if a score is NaN or +inf.
  Real* score_stats = nullptr;
};

// Inputs and outputs of a backward pass. Gradients whose pointer is null are not computed; all others are overwritten,
// not accumulated.
template <typename Real>
struct Backward {
  ConstView q, k, v, out, d_out;
  const Real* distance_bias = nullptr;
  const Real* tau = nullptr;
  const Real* sink = nullptr;
  const Real* alibi_slopes = nullptr;
  const Real* lse = nullptr;  // written by the forward pass
  ConstView alive_sum;        // written by the forward pass, or null if it was not
  View d_q, d_k, d_v;
  Real* d_distance_bias = nullptr;  // each of these four gradients has the shape of its parameter
  Real* d_tau = nullptr;
  Real* d_sink = nullptr;
  Real* d_alibi_slopes = nullptr;
  // The RoPE tables of shape (q_length, head_dim / 2) by which the pairs (n, n + head_dim / 2) of the rows of q and k
  // were rotated, or null. If they are given, the backward returns d_q and d_k with respect to the unrotated q and k.
  // This requires that rotates_back_cuda (attention_cuda.h) returns true.
  const float *cos = nullptr, *sin = nullptr;
};

// Returns the reason, as one line, why the fast CPU kernels do not support this problem, or "" if they do.
// kernel_table.h has the same check for GPUs.
std::string unmet_condition(const Problem& problem);

// Run the fast CPU kernels (src/attention/cpu) for dtype f32, bf16 or f16, with fp32 arithmetic. Memory is linear in
// the lengths. Results are bit-identical for every number of threads. Both functions throw std::invalid_argument with
// the text of unmet_condition if the kernels do not support the problem.
void forward(const Problem& problem, const Forward<float>& arguments);
void backward(const Problem& problem, const Backward<float>& arguments);

namespace reference {
// The reference implementation, which defines the operator: float64, simple loops, all normalizers and layouts.
// Requires dtype f64.
void forward(const Problem& problem, const Forward<double>& arguments);
void backward(const Problem& problem, const Backward<double>& arguments);
}  // namespace reference

}  // namespace lazy::kernels
