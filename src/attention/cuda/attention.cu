// Entry points of attention on the GPU: kernel selection, workspace layout and dispatch. This is a .cu file so that
// builds without CUDA skip it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention/cuda/launchers.h"
#include "lazy/attention_cuda.h"

namespace lazy::kernels {

namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // clear the error so that the next launch does not report it again
    throw std::runtime_error(std::string("CUDA error, attempted ") + what + ": " + cudaGetErrorString(status));
  }
}

namespace {

template <typename Arguments>
Params common(const Problem& p, const Arguments& a) {
  Params r{};
  r.q = tensor(a.q);
  r.k = tensor(a.k);
  r.v = tensor(a.v);
  r.distance_bias = a.distance_bias;
  r.tau = a.tau;
  r.sink = a.sink;
  r.alibi_slopes = a.alibi_slopes;
  r.out = tensor(a.out);
  r.lse = const_cast<float*>(a.lse);
  r.cu_q = p.cu_seqlens_q;
  r.cu_k = p.cu_seqlens_k;
  r.sequences = static_cast<int>(p.sequences);
  r.batch = static_cast<int>(p.batch);
  r.q_length = static_cast<int>(p.q_length);
  r.k_length = static_cast<int>(p.k_length);
  r.heads = static_cast<int>(p.heads);
  r.kv_heads = static_cast<int>(p.kv_heads);
  r.head_dim = static_cast<int>(p.head_dim);
  r.value_dim = static_cast<int>(p.value_dim);
  r.window = static_cast<int>(std::clamp<int64_t>(p.window, -1, int64_t{1} << 30));
  r.bias_window = a.distance_bias ? static_cast<int>(p.bias_window) : 0;
  r.scale = static_cast<float>(p.scale);
  r.softcap = softcap_of(p);
  r.sigmoid_bias = static_cast<float>(p.sigmoid_bias);
  r.dtype = p.dtype;
  r.normalizer = p.normalizer;
  r.causal = p.causal;
  r.per_visible = p.offset == Offset::per_visible;
  return r;
}

}  // namespace

Params make_params(const Problem& p, const Forward<float>& a) {
  Params r = common(p, a);
  r.stats = a.stats;
  r.score_stats = a.score_stats;
  r.alive_sum = tensor(a.alive_sum);
  return r;
}

Params make_params(const Problem& p, const Backward<float>& a) {
  Params r = common(p, a);
  r.alive_sum = tensor(a.alive_sum);
  r.d_out = tensor(a.d_out);
  r.d_q = tensor(a.d_q);
  r.d_k = tensor(a.d_k);
  r.d_v = tensor(a.d_v);
  r.d_distance_bias = a.d_distance_bias;
  r.d_tau = a.d_tau;
  r.d_sink = a.d_sink;
  r.d_alibi_slopes = a.d_alibi_slopes;
  r.cos = a.cos;
  r.sin = a.sin;
  return r;
}

namespace {

// Returns the number of parts (splits) into which the row tiles are divided for the gradient of the distance bias. The
// number is chosen so that there are enough thread blocks to fill any GPU. It depends only on the problem, so that the
// results do not depend on the device.
int bias_splits(const Params& p) {
  const int64_t blocks = static_cast<int64_t>(p.heads) * ((p.bias_window + kBiasTile - 1) / kBiasTile);
  const int64_t tiles = static_cast<int64_t>(tile_count(p, p.q_length, kPlainRows)) * p.batch;
  return static_cast<int>(std::clamp<int64_t>(1024 / std::max<int64_t>(blocks, 1), 1, std::min<int64_t>(tiles, 64)));
}

int partial_tiles(const Params& p) {
  const int rows = tile_count(p, p.q_length, kPlainRows), keys = tile_count(p, p.k_length, portable_keys(p.head_dim));
  return std::max(rows, keys) * p.batch;
}

bool bias_in_blocks(const Params& p) { return p.bias_window <= kMaxBlockBias; }

// Sets the workspace pointers of the parameters and returns the size of the workspace. If `base` is null, the pointers
// are null and only the size is used. The caller must set r.bias_window to Problem::bias_window, even if the problem's
// tensors are not known yet.
size_t lay_out_backward(Params& r, CudaKernel kernel, void* base) {
  Arena arena(base);
  const int64_t rows = static_cast<int64_t>(r.batch) * r.heads * r.q_length;
  const bool hopper = kernel == CudaKernel::hopper, portable = kernel == CudaKernel::portable;
  if (hopper) {
    arena.take(r.row_state, int64_t{256} * tile_count(r, r.q_length, 64) * r.heads * r.batch);
  } else if (portable) {
    arena.take(r.row_state, 4 * rows);
  } else {
    arena.take(r.row_center, rows);
    arena.take(r.row_norm, rows);
  }
  arena.take(r.partial, int64_t{3} * r.heads * partial_tiles(r));
  if (hopper) {
    arena.take(r.dq_sum, int64_t{64} * tile_count(r, r.q_length, 64) * r.heads * r.batch * hopper_columns(r.head_dim));
  } else if (portable && !r.deterministic && !in_family<NormalizerFamily::threshold>(r.normalizer)) {
    arena.take(r.dq_sum, int64_t{16} * tile_count(r, r.q_length, 16) * r.heads * r.batch * r.head_dim);
  }
  if (r.bias_window > 0) {
    const bool in_blocks = kernel != CudaKernel::plain && bias_in_blocks(r);
    const int keys = hopper ? kHopperKeys : portable_keys(r.head_dim);
    r.bias_splits = in_blocks ? tile_count(r, r.k_length, keys) * r.batch : bias_splits(r);
    arena.take(r.bias_slabs, static_cast<int64_t>(r.bias_splits) * r.heads * r.bias_window);
  }
  return arena.used();
}

void run_portable_backward(Params r, cudaStream_t stream) {
  const int step = partial_tiles(r);
  check(cudaMemsetAsync(r.partial, 0, sizeof(float) * 3 * r.heads * step, stream), "to clear partial sums");
  const bool in_blocks = r.d_distance_bias && bias_in_blocks(r);
  float* const slabs = r.bias_slabs;
  if (!in_blocks) r.bias_slabs = nullptr;
  if (!r.d_q.data) r.dq_sum = nullptr;
  require(portable_backward(traits(r.normalizer).family, r.head_dim), "the portable kernel")(r, step, stream);
  r.bias_slabs = slabs;
  if (in_blocks) {
    sum_bias_slabs(r, stream);
  } else {
    bias_gradient(r, stream);
  }
  reduce_partial(r, step, stream);
}

void run_hopper_backward(Params r, cudaStream_t stream) {
  const int step = partial_tiles(r);
  if (static_cast<int64_t>(r.batch) * r.heads * step == 0) return;
  check(cudaMemsetAsync(r.partial, 0, sizeof(float) * 3 * r.heads * step, stream), "to clear partial sums");
  if (!r.d_q.data) r.dq_sum = nullptr;
  if (!r.d_distance_bias) r.bias_slabs = nullptr;
  require(hopper_backward(traits(r.normalizer).family, r.head_dim), "the hopper kernel")(r, step, stream);
  if (r.d_distance_bias && r.bias_window > 0) sum_bias_slabs(r, stream);
  reduce_partial(r, step, stream);
}

// Whether an axis of x with more than one element has a stride of zero (as in an expanded tensor) or below zero. TMA
// does not support such strides.
bool repeats(const Tensor& x, int batch, int tokens, int heads) {
  return (batch > 1 && x.batch <= 0) || (tokens > 1 && x.token <= 0) || (heads > 1 && x.head <= 0);
}
bool repeats(const Params& r) {
  return repeats(r.q, r.batch, r.q_length, r.heads) || repeats(r.k, r.batch, r.k_length, r.kv_heads) ||
         repeats(r.v, r.batch, r.k_length, r.kv_heads);
}
bool all_aligned(const Params& r) {
  return aligned(r.q) && aligned(r.k) && aligned(r.v) && aligned(r.out) && aligned(r.alive_sum) && aligned(r.d_out) &&
         aligned(r.d_q) && aligned(r.d_k) && aligned(r.d_v);
}

DeviceFacts read_facts(int device) {
  int major = 0, minor = 0, shared_memory = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return {10 * major + minor, shared_memory};
}

}  // namespace
}  // namespace cuda

DeviceFacts device_facts() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  return cuda::read_facts(device);
}

std::string unmet_condition_cuda(const Problem& p, CudaKernel kernel) {
  return unmet_condition_cuda(p, kernel, device_facts());
}

CudaKernel choose_cuda(const Problem& p) { return choose_cuda(p, device_facts()); }

namespace {

CudaKernel served(const Problem& p, const cuda::Params& r, const CudaCall& call) {
  const std::string unmet = unmet_condition_cuda(p, call.kernel);
  if (!unmet.empty()) throw std::invalid_argument(unmet);
  const bool aligned = cuda::all_aligned(r);
  if (call.kernel == CudaKernel::automatic) {
    const CudaKernel best = aligned ? choose_cuda(p) : CudaKernel::plain;
    if (best != CudaKernel::hopper || !cuda::repeats(r)) return best;
    return unmet_condition_cuda(p, CudaKernel::portable).empty() ? CudaKernel::portable : CudaKernel::plain;
  }
  if (call.kernel != CudaKernel::plain && !aligned) {
    throw std::invalid_argument(
        std::string("the ") + name(call.kernel) +
        " kernel requires a contiguous last axis, other strides that are multiples of 8 and data aligned "
        "to 16 bytes");
  }
  if (call.kernel == CudaKernel::hopper && cuda::repeats(r)) {
    throw std::invalid_argument("the hopper kernel requires strides above zero; expanded tensors are not supported");
  }
  return call.kernel;
}

}  // namespace

bool writes_alive_sum_cuda(const Problem& p, const CudaCall& call) {
  const CudaKernel kernel = call.kernel == CudaKernel::automatic ? choose_cuda(p) : call.kernel;
  return (kernel == CudaKernel::hopper || kernel == CudaKernel::portable) && !call.deterministic &&
         cuda::writes_alive_sum(cuda::make_params(p, Forward<float>{}));
}

bool rotates_back_cuda(const Problem& p, const CudaCall& call) {
  const CudaKernel kernel = call.kernel == CudaKernel::automatic ? choose_cuda(p) : call.kernel;
  return kernel == CudaKernel::hopper && !call.deterministic && !p.cu_seqlens_q && p.q_length == p.k_length &&
         p.q_length > 0 && p.head_dim == p.value_dim &&
         p.head_dim == cuda::hopper_columns(static_cast<int>(p.head_dim));
}

bool reads_rows_from_out_cuda(const Problem& p, const Backward<float>& a, const CudaCall& call) {
  cuda::Params r = cuda::make_params(p, a);
  r.deterministic = call.deterministic;
  return served(p, r, call) != CudaKernel::plain && cuda::has_rounded_sums(r);
}

size_t backward_workspace_cuda(const Problem& p, const CudaCall& call) {
  size_t most = 0;
  // Return the maximum over all kernels that support the problem, because the kernel is chosen only when the strides of
  // the tensors are known.
  for (CudaKernel kernel : {CudaKernel::plain, CudaKernel::portable, CudaKernel::hopper}) {
    if (kernel != CudaKernel::plain && !unmet_condition_cuda(p, kernel).empty()) continue;
    cuda::Params r = cuda::make_params(p, Backward<float>{});
    r.bias_window = static_cast<int>(p.bias_window);
    r.deterministic = call.deterministic;
    most = std::max(most, cuda::lay_out_backward(r, kernel, nullptr));
  }
  return most;
}

void forward_cuda(const Problem& p, const Forward<float>& a, const CudaCall& call) {
  cuda::Params r = cuda::make_params(p, a);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  const CudaKernel kernel = served(p, r, call);
  if (r.score_stats && kernel != CudaKernel::plain && !cuda::writes_score_stats(r)) {
    cuda::score_statistics(r, stream);
    r.score_stats = nullptr;
  }
  switch (kernel) {
    case CudaKernel::hopper:
      if (cuda::fits_single_pass(r)) return cuda::hopper_forward_single_pass(r, stream);
      return cuda::require(cuda::hopper_forward(traits(p.normalizer).family, p.head_dim), "the hopper kernel")(r,
                                                                                                               stream);
    case CudaKernel::portable:
      return cuda::require(cuda::portable_forward(traits(p.normalizer).family, p.head_dim), "the portable kernel")(
          r, stream);
    case CudaKernel::plain:
      return cuda::plain_forward(r, stream);
    case CudaKernel::automatic:
      break;
  }
  throw std::logic_error("attention on CUDA: no kernel was selected");
}

void backward_cuda(const Problem& p, const Backward<float>& a, const CudaCall& call) {
  cuda::Params r = cuda::make_params(p, a);
  CudaKernel kernel = served(p, r, call);
  // The Hopper backward adds to dQ in the order in which blocks finish, so it is not deterministic.
  if (kernel == CudaKernel::hopper && (call.deterministic || p.q_length == 0 || p.k_length == 0)) {
    kernel = CudaKernel::portable;
  }
  if (r.cos && kernel != CudaKernel::hopper) {
    throw std::invalid_argument(std::string("the ") + name(kernel) +
                                " kernel does not support the backward of RoPE (cos and sin)");
  }
  r.deterministic = call.deterministic;
  cuda::lay_out_backward(r, kernel, call.workspace);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  switch (kernel) {
    case CudaKernel::hopper:
      return cuda::run_hopper_backward(r, stream);
    case CudaKernel::portable:
      return cuda::run_portable_backward(r, stream);
    case CudaKernel::plain:
      return cuda::plain_backward(r, stream);
    case CudaKernel::automatic:
      break;
  }
  throw std::logic_error("attention on CUDA: no kernel was selected");
}

}  // namespace lazy::kernels
