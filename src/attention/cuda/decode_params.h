// The decode kernels' arguments, passed by value, and how their work is divided.
//
// Query rows that share a kv head are worked on in tiles of kRows. Kernels follow one another:
//   scores  a block has kWarps * part keys of a tile: scores, and each warp's largest score and sum of exponentials;
//   states  a block a row, from scores to weights; only for thresholds and very many parts;
//   values  a block has a span of kWarps * scan keys of a tile. It computes its rows' states unless the states kernel
//           did, lists the keys that carry weight and sums their rows of V;
//   sums    a block a row: adds up the spans.
// Where tiles are many and short, a block does all of that for a tile, in the same order of additions.
// Score statistics, where they are asked for, are one more kernel behind the scores, a block a row.
// All but sums run in rounds, each of as many tiles as the memory for scores holds.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>

#include "attention/cuda/params.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels::cuda::decoding {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRows = 8;          // n of mma.sync
constexpr int kPad = 16;          // keys are multiplied 16 at a time: m, or k, of mma.sync
constexpr int kSumThreads = 512;  // of the sums kernel

// Where a cache's keys lie: one behind the other, or on pages; units: kPad keys, from a multiple on, on one page.
enum class Pages { none, units, keys };

struct Sequence {
  int length;      // -1: out of range, the results are NaN
  int first, end;  // keys that any row sees; first is rounded down to kPad
};

// From a row's score to its weight.
struct alignas(16) RowState {
  float largest;       // score
  float inverse;       // 1 / sum of exponentials; the threshold of sparsemax and entmax15
  float offset;        // elastic: tau / c or tau; sigmoid: beta
  float dead;          // softmax and its like: weights up to this are none
  float weight_scale;  // a power of two that keeps weights in the range of fp16
  int begin, end;      // visible keys
  int unused;
};

// A number to divide by, for dividends below 2^30: a product's upper half, shifted.
struct Divisor {
  int value = 1;
  uint32_t factor = 0, shift = 0;
  Divisor() = default;
  explicit Divisor(int x) : value(x) {
    if (x == 1) return;
    shift = static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(x - 1)) - 1);  // 2^shift < x <= 2^(shift + 1)
    factor = static_cast<uint32_t>(((uint64_t{1} << (32 + shift)) + static_cast<uint64_t>(x) - 1) /
                                   static_cast<uint64_t>(x));
  }
  constexpr int divide(int n) const {
    if (value == 1) return n;
    return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * factor >> 32) >> shift);
  }
};

struct Params {
  Tensor q, k, v, out;
  const float *distance_bias, *tau, *sink, *alibi_slopes;
  float *lse, *stats, *score_stats;
  const int64_t *lengths, *block_table, *visible_counts;
  int64_t table_width, pages;
  Divisor page_size;
  Pages pages_of;
  int capacity;
  int batch, q_length, heads, kv_heads, head_dim, value_dim;
  int window, bias_window;
  float scale, sigmoid_bias;  // scale: 1 with a softcap, after which products are scores
  Softcap softcap;
  DType dtype;
  Normalizer normalizer;
  bool causal, per_visible, q_aligned;

  int group, rows, tiles;            // heads a kv head; rows a kv head; tiles of them
  int part, scan;                    // keys of a warp, as above, powers of two that follow from the problem's shape
  int columns;                       // keys of a row of scores
  int max_parts, max_spans;          // of a row at most
  bool separate_states;              // the states kernel runs
  bool by_tile;                      // a block a tile
  bool after_kernel;                 // another kernel is in front of the first one
  int score_rows;                    // rows of scores a tile
  int score_row, score_key;          // floats from a row's score to the next row's, from a key's to the next key's
  int key_bytes, value_bytes;        // shared memory of a warp
  int tile_bytes;                    // the larger of both with the parts of a warp by tile
  int round_sequences, round_tiles;  // of a round: sequences, tiles of each
  int round_batch, round_tile;       // its first ones

  // The workspace. Rows count as in lse: (batch, heads, q_length).
  float* scores;     // (tiles of a round, score_rows * columns); key j of a sequence is column j - first
  float2* parts;     // (rows, max_parts): largest score, sum of exponentials relative to it
  RowState* states;  // (rows)
  float* sums;  // (rows, max_spans, value_dim): weighted sums of V; by tile (tiles, pieces of spans, rows, value_dim)
  float2* masses;  // (rows, max_spans): sum of weights; alive keys, an int
  float* firsts;   // (rows): weight on the first key, where it is visible
};

void decode_tensor_cores(const Params& p, cudaStream_t stream);  // 2-byte types, 16-byte loads of K and V
// A block a tile of one row, of p.by_tile: straight code for what steps of many texts have, with the same bits.
bool serves_decode_row(const Params& p);
void decode_row(const Params& p, cudaStream_t stream);
void decode_plain(const Params& p, cudaStream_t stream);  // every problem, fp32 arithmetic

// What decode_step_cuda's kernels would get, for another kernel with the same bits (ops/cuda/step_layers.cu); only the
// workspace's scores are used. Nothing unless tensor cores serve, the normalizer is exponential and kPad keys lie on
// one page.
std::optional<Params> step_params(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                                  void* workspace);

void launch_states(const Params& p, int sequences, cudaStream_t stream);            // of the round
void launch_score_statistics(const Params& p, int sequences, cudaStream_t stream);  // likewise
void launch_sums(const Params& p, cudaStream_t stream);                             // of all rows

// Launching kernels that begin with wait_for_launcher().

constexpr int kSharedMost = 96 << 10;  // dynamic, of a block; every GPU from sm_80 on has as much
constexpr int kSharedPercent = 86;     // 196 KiB on sm_90; loads in flight need the rest

// Of the current GPU.
inline int gpu_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "to name the device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "to describe the device");
  return value;
}

// Runs a function once for each GPU: what is set for a kernel holds on the current GPU alone. Threads that come at the
// same time may all run it.
class OncePerDevice {
 public:
  template <typename Function>
  void operator()(const Function& function) {
    int device = 0;
    check(cudaGetDevice(&device), "to name the device");
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (done_.load(std::memory_order_acquire) & bit) return;
    function();
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> done_ = 0;  // a bit for each of the first 64 devices
};

// Whether the current GPU and the kernel's machine code have what came with sm_90: a kernel that was launched early can
// wait, blocks form clusters.
template <auto kernel>
bool has_sm_90() {
  if (gpu_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return false;
  static const bool compiled = [] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "to describe decode");
    return attributes.ptxVersion >= 90;
  }();
  return compiled;
}

// after_own: the launch before in this stream is one of these kernels, which lets this one start before it ends
// (programmatic dependent launch), where the machine code can wait for it. cluster: blocks of a cluster, along x.
template <auto kernel, typename Arguments>
void start(const Arguments& p, dim3 grid, int threads, int shared_bytes, bool after_own, cudaStream_t stream,
           unsigned cluster = 1) {
  static OncePerDevice prepared;
  prepared([] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "to describe decode");
    const int most = gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);  // static and dynamic memory together
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               most - static_cast<int>(attributes.sharedSizeBytes)),
          "to prepare decode");
    // The same division of the memory for all, so that kernels can share a multiprocessor where one ends.
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSharedPercent),
          "to prepare decode");
  });
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (after_own && has_sm_90<kernel>()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, p), "decode");
}

}  // namespace lazy::kernels::cuda::decoding
