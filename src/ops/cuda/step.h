// Kernels of a decode step on NVIDIA GPUs: one token for each of up to a few hundred sequences. The functions only
// launch work on the stream and do not allocate memory or synchronize, so a decode step can be captured in a CUDA
// graph. The kernels use programmatic dependent launch and may start before their predecessor on the stream has
// finished; this predecessor must be a kernel.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazy/attention_cuda.h"
#include "ops/cuda/rows.h"

namespace lazy::ops::cuda {

// For up to this number of rows of x, one kernel computes the product and reads W once. Products with more rows are
// computed in tiles.
constexpr int64_t kMaxUngroupedRows = 8;

// Destination of q, k and v of the tokens. q and k are rotated by RoPE according to the positions, and k and v are
// written to their KV-cache pages.
struct PageTarget {
  void* q;                   // (tokens, heads, dim) contiguous
  void *keys, *values;       // pages, (slots, kv_heads, dim) contiguous
  const int64_t* positions;  // (tokens): position of each token in its sequence, from 0
  const int64_t* slots;      // (tokens): slots in the KV cache
  int64_t heads, kv_heads, dim;
  RopeTable table;  // with table.pairs = 0, q and k are not rotated; angles outside the table are computed
  bool interleaved;
};

// Skinny GEMM y = x W^T. The bits of a row of y depend only on the row of x, on W and on `in`, not on the number of
// rows.
struct SkinnyGemm {
  DType type;  // bf16 or f16
  const void *x, *W;
  int64_t x_stride;                    // row stride in elements, a multiple of 8
  int64_t rows, in, out;               // x (rows, in), W (out, in) contiguous; `in` a multiple of 8
  const float* norm_weight = nullptr;  // (in); if given, x is replaced by its RMSNorm with these weights
  float eps = 0;
  const void* add = nullptr;     // (rows, out) contiguous, added to the rounded y; must be null with swiglu or wide
  const void* next_W = nullptr;  // weights of the next kernel, prefetched to the L2 cache (a hint)
  int64_t next_bytes = 0;
  bool swiglu = false;  // W has the shape (2 out, in), and y = silu(x W_0^T) * x W_1^T with the halves W_0 and W_1 of W
  bool wide = false;    // if true, y is fp32
  void* y;              // (rows, out) contiguous; if null, which requires a norm, the result is written to `pages`
  // Workspaces, required for more than kMaxUngroupedRows rows. scaled_x: (rows rounded up to a multiple of 8, in) of
  // dtype `type`; scales: (rows).
  void* scaled_x = nullptr;
  float* scales = nullptr;
  // If y is null, the rows of W are the heads of q, k and v, `out` is the number of RoPE pairs of q, k and v per token,
  // and each row of x is a token. The result is bitwise equal to kv_cache_write applied to the product. `dim` and the
  // number of rotated dimensions must be multiples of 8, and pointers must be aligned to 16 bytes.
  PageTarget pages = {};
};
void skinny_gemm(const SkinnyGemm& arguments, cudaStream_t stream);
// Variants of skinny_gemm with the same result for any number of rows. skinny_gemm_tiles calls skinny_gemm_split for
// products that are too small for its tiles.
void skinny_gemm_tiles(const SkinnyGemm& arguments, cudaStream_t stream);
void skinny_gemm_split(const SkinnyGemm& arguments, cudaStream_t stream);
// Variant of skinny_gemm for more than 64 rows on compute capability 9. Returns false without doing any work if it does
// not support the arguments.
bool skinny_gemm_hopper(const SkinnyGemm& arguments, cudaStream_t stream);

struct KvCacheWrite {
  DType type;
  const void *q, *k, *v;  // (tokens, heads or kv_heads, dim); the last axis is contiguous
  int64_t q_token, q_head, k_token, k_head, v_token, v_head;
  int64_t tokens;
  PageTarget to;
  // Optional gathered copies of keys and values, (rows, kv_heads, dim) contiguous; ops/kv_cache_write.h defines the
  // sources. If sources are given, a token is written to its page only if it is a source. A slot that is a source must
  // not also be the slot of a token.
  const int64_t* sources = nullptr;  // (rows)
  int64_t rows = 0;                  // 0: nothing is gathered
  void *gathered_keys = nullptr, *gathered_values = nullptr;
};
void kv_cache_write(const KvCacheWrite& arguments, cudaStream_t stream);

// All layers of a decode step of one sequence in one kernel, for bf16. The result is bitwise equal to a sequence of
// calls of skinny_gemm, skinny_gemm with pages, and decode_step_cuda. Each layer computes x += W_o attention(norm(x))
// and then x += W_down swiglu(norm(x)).
struct FusedDecodeLayer {
  // Weight matrices with the layout of SkinnyGemm::W. The rows of qkv are the heads of q, k and v.
  const void *qkv, *output, *gate_up, *down;
  const float *norm, *mlp_norm;                            // norm weights, shape (hidden)
  void *keys, *values;                                     // KV-cache pages of this layer
  const float *distance_bias, *tau, *sink, *alibi_slopes;  // see kernels::Decode; null: not used
};
struct FusedDecodeLayers {
  const FusedDecodeLayer* layers;
  int64_t count;
  kernels::Problem problem;  // attention problem, the same for all layers
  // The same for all layers: lengths, block table, and whether there is a distance bias.
  kernels::Decode<float> attention = {};
  int64_t pages;
  PageTarget to;  // the same for all layers: positions, slots, table, interleaved, heads, kv_heads, dim
  int64_t hidden, inner;
  float eps;
  const void* x;  // (hidden): input of the first layer
  void* y;        // (hidden): output of the last layer
  // Workspace of fused_decode_sync_words 64-bit words, aligned to 128 bytes. It must be zero initially and is then used
  // again by all steps of the same shape. A step must not start before the previous step has finished.
  void* words;
  int most_blocks = 0;  // limit on the number of blocks, for tests; 0: one block per multiprocessor
};
// Whether the kernel supports the problem, the sizes and the current device. The function does not dereference the
// pointers.
bool supports_fused_decode_layers(const FusedDecodeLayers& arguments);
int64_t fused_decode_sync_words(const FusedDecodeLayers& arguments);
void fused_decode_layers(const FusedDecodeLayers& arguments, cudaStream_t stream);

// Selects the next token of each row; ops/sample_tokens.h describes the arguments.
struct SampleTokens {
  const float* logits;     // (rows, vocabulary)
  const int64_t* numbers;  // (rows, kSampleNumberCount)
  const int64_t* slots;    // (rows)
  int32_t* counts;         // (slots, vocabulary) or null
  const float* bias;       // (slots, vocabulary), required if counts is given
  int64_t* last;           // (slots)
  int64_t* tokens;         // (rows)
  int64_t rows, vocabulary;
};
void sample_tokens(const SampleTokens& arguments, cudaStream_t stream);

// Copies between GPU memory and pinned host memory, in words of 8 bytes.
struct PinnedCopy {
  uint64_t* to;
  const uint64_t* from;
  int64_t words;
};
void pinned_copy(const PinnedCopy& arguments, cudaStream_t stream);

// One token of a linear recurrence (recurrence.h), with fp32 arithmetic.
constexpr int64_t kMaxStepKeys = 512;
struct RecurrenceStep {
  DType type;
  const void *q, *k, *v;  // q and k (batch, groups, key_dim), v (batch, heads, value_dim), with the strides below
  int64_t q_batch, q_head, k_batch, k_head, v_batch, v_head;
  const float* log_decay;  // (batch, heads), or (heads) if constant_decay; null: no decay
  bool constant_decay;
  const float* beta;                                 // (batch, heads) or null: ones
  const float* skip;                                 // (heads) or null: zeros
  const float* state;                                // (batch, heads, key_dim, value_dim) or null: zeros
  float* next_state;                                 // shape of `state`
  void* out;                                         // (batch, heads, value_dim) contiguous
  int64_t batch, heads, groups, key_dim, value_dim;  // key_dim at most 512, value_dim a multiple of 4
  float scale;
  bool delta;
  int64_t first = 0;  // first sequence of the launch; the blocks with blockIdx.z = 0 process it
};
void recurrence_step(const RecurrenceStep& arguments, cudaStream_t stream);

// One token of the short convolution (short_convolution.h), bitwise equal to the result of short_convolution.
struct ConvolutionStep {
  DType type;
  const void* x;        // (batch, channels); channels are contiguous
  int64_t x_batch;      // stride between sequences, in elements
  const float* weight;  // (channels, taps)
  const float* bias;    // (channels) or null
  const void* past;     // (batch, taps - 1, channels)
  void* next_past;      // shape of `past`
  void* y;              // (batch, channels) contiguous
  int64_t batch, channels, taps;
  int64_t first = 0;  // first sequence of the launch; the blocks with blockIdx.y = 0 process it
};
void convolution_step(const ConvolutionStep& arguments, cudaStream_t stream);

}  // namespace lazy::ops::cuda
