// Kernels of a decoding step on NVIDIA GPUs: one token of each of a few hundred sequences. As in rows.h everything is
// queued on the stream, nothing is allocated and nothing waits, so a step can be recorded in a CUDA graph. Each begins
// before the kernel in front of it has ended (programmatic dependent launch), which must be a kernel.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazy/attention_cuda.h"
#include "ops/cuda/rows.h"

namespace lazy::ops::cuda {

// Products of up to so many rows are one kernel that reads every number of W once; of more they are made in tiles.
constexpr int64_t kRowsByThemselves = 8;

// Where a step's tokens put q, k and v: q and k turned by their positions, k and v in their pages.
struct ToPages {
  void* q;                   // (tokens, heads, dim) contiguous
  void *keys, *values;       // pages, (places, kv_heads, dim) contiguous
  const int64_t* positions;  // (tokens), from 0
  const int64_t* slots;      // (tokens): places
  int64_t heads, kv_heads, dim;
  RopeTable table;  // pairs 0: no rotation. What it does not hold is computed
  bool interleaved;
};

// y = x W^T. A row's bits depend on that row and on `in` alone, not on the number of rows.
struct FewRows {
  DType type;  // bf16 or f16
  const void *x, *W;
  int64_t x_stride;                    // elements from row to row, a multiple of 8
  int64_t rows, in, out;               // x (rows, in), W (out, in) contiguous; `in` a multiple of 8
  const float* norm_weight = nullptr;  // (in): x is replaced by its RMSNorm
  float eps = 0;
  const void* add = nullptr;     // (rows, out) contiguous, added to the rounded y; neither with swiglu nor with wide
  const void* next_W = nullptr;  // likely to be read by the next kernel: a hint
  int64_t next_bytes = 0;
  bool swiglu = false;  // W (2 out, in): y = silu(x W_0^T) * x W_1^T
  bool wide = false;    // y in fp32
  void* y;              // (rows, out) contiguous; null, with a norm: to `pages`
  // Room for (rows rounded up to 8, in) of `type` and for (rows), with more than kRowsByThemselves rows.
  void* weighed = nullptr;
  float* scales = nullptr;
  // W's rows are the heads of q, k and v, `out` is the number of their pairs; a row of x is a token. Bit for bit what
  // rope_to_pages makes of the product. `dim` and the turned dimensions are multiples of 8, pointers aligned to 16
  // bytes.
  ToPages pages = {};
};
void few_rows(const FewRows& arguments, cudaStream_t stream);
// The same, whatever the number of rows; few_rows_tiles leaves to few_rows_split what is too small for its tiles.
void few_rows_tiles(const FewRows& arguments, cudaStream_t stream);
void few_rows_split(const FewRows& arguments, cudaStream_t stream);
// The same, of more than 64 rows on compute capability 9; false, and nothing is done, for what it does not serve.
bool few_rows_hopper(const FewRows& arguments, cudaStream_t stream);

struct RopeToPages {
  DType type;
  const void *q, *k, *v;  // (tokens, heads or kv_heads, dim); the last axis is contiguous
  int64_t q_token, q_head, k_token, k_head, v_token, v_head;
  int64_t tokens;
  ToPages to;
  // Where keys and values are gathered too, (rows, kv_heads, dim) contiguous: ops/rope_to_pages.h says from where. Only
  // tokens that are a source then go to pages. Pages that are a source are no token's slot.
  const int64_t* sources = nullptr;  // (rows)
  int64_t rows = 0;                  // 0: nothing is gathered
  void *gathered_keys = nullptr, *gathered_values = nullptr;
};
void rope_to_pages(const RopeToPages& arguments, cudaStream_t stream);

// The layers of a step of one text in one kernel: the bits of few_rows, few_rows to pages and decode_step_cuda one
// after the other. bf16; layers x += W_o attention(norm(x)), x += W_down swiglu(norm(x)).
struct StepLayer {
  const void *qkv, *output, *gate_up, *down;  // as FewRows::W; of qkv the rows of q's heads, then k's, then v's
  const float *norm, *mlp_norm;               // weights (hidden)
  void *keys, *values;                        // pages
  const float *distance_bias, *tau, *sink, *alibi_slopes;  // as in Decode, or null
};
struct StepLayers {
  const StepLayer* layers;
  int64_t count;
  kernels::Problem problem;               // of every layer
  kernels::Decode<float> attention = {};  // likewise: lengths, the block table, whether there is a distance bias
  int64_t pages;
  ToPages to;  // likewise: positions, slots, table, interleaved, heads, kv_heads, dim
  int64_t hidden, inner;
  float eps;
  const void* x;  // (hidden)
  void* y;        // likewise
  // As many words of 64 bits as step_layers_words says, aligned to 128 bytes. Zero at first, then kept from step to
  // step, for steps of the same shape, of which none begins before the last one has ended.
  void* words;
  int most_blocks = 0;  // for tests; 0: a block a multiprocessor
};
// Where the problem, the sizes and the current device allow it. Pointers do not matter.
bool serves_step_layers(const StepLayers& arguments);
int64_t step_layers_words(const StepLayers& arguments);
void step_layers(const StepLayers& arguments, cudaStream_t stream);

// The next token of each row: see ops/sample_tokens.h.
struct SampleTokens {
  const float* logits;     // (rows, vocabulary)
  const int64_t* numbers;  // (rows, kSampleNumberCount)
  const int64_t* slots;    // (rows)
  int32_t* counts;         // (slots, vocabulary) or null
  const float* bias;       // (slots, vocabulary), where counts are
  int64_t* last;           // (slots)
  int64_t* tokens;         // (rows)
  int64_t rows, vocabulary;
};
void sample_tokens(const SampleTokens& arguments, cudaStream_t stream);

// Between a GPU's and pinned host memory.
struct PinnedCopy {
  uint64_t* to;
  const uint64_t* from;
  int64_t words;
};
void pinned_copy(const PinnedCopy& arguments, cudaStream_t stream);

// A token of a linear recurrence (cuda/recurrence.h), arithmetic in fp32.
constexpr int64_t kMostStepKeys = 512;
struct RecurrenceStep {
  DType type;
  const void *q, *k, *v;  // (batch, groups, key_dim), (batch, heads, value_dim) at these steps, in elements
  int64_t q_batch, q_head, k_batch, k_head, v_batch, v_head;
  const float* log_decay;  // (batch, heads), or (heads) if constant_decay; null: no decay
  bool constant_decay;
  const float* beta;                                 // (batch, heads) or null: ones
  const float* skip;                                 // (heads) or null: zeros
  const float* state;                                // (batch, heads, key_dim, value_dim) or null: zeros
  float* next_state;                                 // likewise
  void* out;                                         // (batch, heads, value_dim) contiguous
  int64_t batch, heads, groups, key_dim, value_dim;  // key_dim at most kMostStepKeys, value_dim a multiple of 4
  float scale;
  bool delta;
  int64_t first = 0;  // of a launch: the sequence of the blocks with z = 0
};
void recurrence_step(const RecurrenceStep& arguments, cudaStream_t stream);

// A token of the short convolution (cuda/short_convolution.h): the same bits.
struct ConvolutionStep {
  DType type;
  const void* x;        // (batch, channels); channels are contiguous
  int64_t x_batch;      // step, in elements
  const float* weight;  // (channels, taps)
  const float* bias;    // (channels) or null
  const void* past;     // (batch, taps - 1, channels)
  void* next_past;      // likewise
  void* y;              // (batch, channels) contiguous
  int64_t batch, channels, taps;
  int64_t first = 0;  // of a launch: the sequence of the blocks with y = 0
};
void convolution_step(const ConvolutionStep& arguments, cudaStream_t stream);

}  // namespace lazy::ops::cuda
