// Arguments of the decode kernels, which are passed by value, and how the kernels divide the work.
//
// A tile is a group of up to kRows query rows that share a kv head. The kernels run in this order:
//   scores  One block processes the keys of one tile, Params::part keys per warp. It computes the scores, and for each
//           warp the maximum score and the sum of exponentials.
//   states  One block per row. It computes the RowState of a row from its scores. This kernel only runs for threshold
//           normalizers and softpick, and if a row has very many parts.
//   values  One block processes a span of the keys of one tile, Params::scan keys per warp. It computes the row states
//           unless the states kernel did, lists the keys with nonzero weight and sums their weighted rows of V.
//   sums    One block per row. It adds the results of the spans.
// If there are many tiles with few keys, a single kernel with one block per tile does all of this work, with the same
// order of additions. If score statistics are requested, another kernel with one block per row runs after the scores
// kernel. All kernels except sums run in rounds: each round processes as many tiles as fit in the memory for scores.
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
constexpr int kRows = 8;          // maximum number of query rows per tile: the n dimension of mma.sync
constexpr int kPad = 16;          // products use 16 keys at a time: the m or k dimension of mma.sync
constexpr int kSumThreads = 512;  // threads per block of the sums kernel

// Layout of the keys in the cache. none: the cache is contiguous. units: the cache is paged and the page size is a
// multiple of kPad, so that each aligned unit of kPad keys is on one page. keys: the cache is paged with any page size.
enum class PageAlignment { none, units, keys };

struct Sequence {
  int length;  // number of keys of the sequence; -1: the length is invalid, and the results are NaN
  // Range of keys that at least one of the sequence's rows sees; first is rounded down to a multiple of kPad.
  int first, end;
};

// Per-row values that convert a score to a weight.
struct alignas(16) RowState {
  float largest;       // maximum score
  float inverse;       // 1 / sum of exponentials; for sparsemax and entmax15, the threshold
  float offset;        // elastic, elastic_sink: tau or tau / (number of visible keys); sigmoid: bias
  float dead;          // exponential family: weights up to this value are set to zero
  float weight_scale;  // power of two by which weights are multiplied to be in the range of fp16
  int begin, end;      // range of visible keys
  int unused;
};

// Divides numbers below 2^30 by an integer that is constant in a kernel. The division is computed as the upper half of
// a product with a precomputed factor, followed by a right shift.
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
  PageAlignment pages_of;
  int capacity;
  int batch, q_length, heads, kv_heads, head_dim, value_dim;
  int window, bias_window;
  float scale, sigmoid_bias;  // with a softcap, scale is 1, because `softcap` includes the scale
  Softcap softcap;
  DType dtype;
  Normalizer normalizer;
  bool causal, per_visible, q_aligned;

  int group, rows, tiles;  // numbers per kv head: query heads, query rows, tiles of query rows
  // Keys per warp in the scores kernel (part) and in the values kernel (scan); powers of two.
  int part, scan;
  int columns;                       // number of keys in a row of scores
  int max_parts, max_spans;          // maximum number of parts and spans per row
  bool separate_states;              // true if the states kernel runs
  bool by_tile;                      // true if one kernel with one block per tile does all of the work
  bool after_kernel;                 // the preceding launch in the stream is a kernel that calls let_next_start()
  int score_rows;                    // number of rows of scores that are stored per tile
  int score_row, score_key;          // strides of the scores in floats between rows and between keys
  int key_bytes, value_bytes;        // bytes of shared memory per warp in the scores kernel and in the values kernel
  int tile_bytes;                    // bytes of shared memory per warp in the single kernel of by_tile
  int round_sequences, round_tiles;  // per round: number of sequences, number of tiles of each sequence
  int round_batch, round_tile;       // index of the first sequence and of the first tile in the round

  // Workspace pointers. Rows are indexed as in lse: (batch, heads, q_length).
  float* scores;     // shape (round_sequences * round_tiles, score_rows * columns); column n: key Sequence::first + n
  float2* parts;     // shape (rows, max_parts): maximum score of a part, and sum of exponentials relative to it
  RowState* states;  // shape (rows)
  // Weighted sums of V of every span. The shape is (rows, max_spans, value_dim), or with by_tile (tiles, kWarps *
  // max_spans, rows of the tile, value_dim).
  float* sums;
  float2* masses;  // shape (rows, max_spans): x is the sum of weights, the bits of y are the number of nonzero weights
  float* firsts;   // shape (rows): weight on the sequence's first key; written only if the row sees this key
};

void decode_tensor_cores(const Params& p, cudaStream_t stream);  // for bf16 and f16; loads K and V in units of 16 bytes
// Specialized kernel for p.by_tile and tiles of one row, as in decode steps of large batches. Its results are bitwise
// equal to the results of decode_tensor_cores. serves_decode_row() returns whether the kernel supports the problem.
bool serves_decode_row(const Params& p);
void decode_row(const Params& p, cudaStream_t stream);
void decode_plain(const Params& p, cudaStream_t stream);  // supports every problem, with fp32 arithmetic

// Returns the parameters that decode_step_cuda would pass to its kernels. ops/cuda/fused_decode_layers.cu uses them for
// a fused kernel whose results are bitwise equal to the results of decode_step_cuda. Of the workspace, the fused kernel
// only uses the scores. Returns nullopt unless the tensor-core kernels support the problem, the normalizer is
// exponential, the cache is paged with a page size that is a multiple of kPad, and neither lse nor statistics are
// requested.
std::optional<Params> step_params(const Problem& problem, const Decode<float>& arguments, const CacheSize& cache,
                                  void* workspace);

void launch_states(const Params& p, int sequences, cudaStream_t stream);            // for the rows of the current round
void launch_score_statistics(const Params& p, int sequences, cudaStream_t stream);  // for the rows of the current round
void launch_sums(const Params& p, cudaStream_t stream);                             // for the rows of all rounds

// Constants and functions for launching kernels that begin with wait_for_launcher().

constexpr int kSharedMost = 96 << 10;  // bytes of dynamic shared memory that a block can use on every GPU from sm_80 on
// Percentage of a multiprocessor's combined L1 and shared memory that is used as shared memory: 196 KiB on sm_90. The
// rest is used as L1 cache.
constexpr int kSharedPercent = 86;

// Returns an attribute of the current GPU.
inline int gpu_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "to return the current device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "to return an attribute of the device");
  return value;
}

// Runs a function once per GPU, at the first call with this GPU as the current device; used for kernel attributes,
// which apply only to the current device. If several threads call at the same time, each of them may run the function.
class OncePerDevice {
 public:
  template <typename Function>
  void operator()(const Function& function) {
    int device = 0;
    check(cudaGetDevice(&device), "to return the current device");
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (done_.load(std::memory_order_acquire) & bit) return;
    function();
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> done_ = 0;  // bit n is set after the function has run for device n, for the first 64 devices
};

// Whether both the current GPU and the kernel's compiled machine code support the features of sm_90: programmatic
// dependent launch and thread block clusters.
template <auto kernel>
bool has_sm_90() {
  if (gpu_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return false;
  static const bool compiled = [] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "to return attributes of a decode kernel");
    return attributes.ptxVersion >= 90;
  }();
  return compiled;
}

// Launches `kernel`. after_own: the preceding launch in this stream is also a decode kernel and calls let_next_start().
// `kernel` may then start before the preceding kernel ends (programmatic dependent launch) if its machine code supports
// this. cluster: number of blocks per cluster along x.
template <auto kernel, typename Arguments>
void start(const Arguments& p, dim3 grid, int threads, int shared_bytes, bool after_own, cudaStream_t stream,
           unsigned cluster = 1) {
  static OncePerDevice prepared;
  prepared([] {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "to return attributes of a decode kernel");
    const int most =
        gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);  // limit of static plus dynamic memory, bytes
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               most - static_cast<int>(attributes.sharedSizeBytes)),
          "to set the shared memory of a decode kernel");
    // All decode kernels use the same division between shared memory and L1, so that the next kernel can start on a
    // multiprocessor while the previous kernel still runs there.
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSharedPercent),
          "to set the shared memory of a decode kernel");
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
  check(cudaLaunchKernelEx(&config, kernel, p), "to launch a decode kernel");
}

}  // namespace lazy::kernels::cuda::decoding
