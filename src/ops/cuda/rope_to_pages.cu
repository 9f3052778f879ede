// Rotation of a few tokens' q and k, and their keys and values into pages. A thread turns, or copies, two numbers.
#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/to_pages.cuh"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) rotate_and_store(const __grid_constant__ RopeToPages p) {
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const int heads = static_cast<int>(p.to.heads), kv = static_cast<int>(p.to.kv_heads);
  const int of_token = (heads + 2 * kv) * static_cast<int>(p.to.dim / 2);
  const int index = blockIdx.x * kThreads + threadIdx.x, token = index / of_token;
  if (token >= p.tokens) return;
  const Pair pair = pair_of(p.to, index - token * of_token);
  const int head = pair.head;
  const T* from = head < heads        ? static_cast<const T*>(p.q) + token * p.q_token + head * p.q_head
                  : head < heads + kv ? static_cast<const T*>(p.k) + token * p.k_token + (head - heads) * p.k_head
                                      : static_cast<const T*>(p.v) + token * p.v_token + (head - heads - kv) * p.v_head;
  const float x = to_float(from[pair.first]), y = to_float(from[pair.second]);
  store_pair<T>(p.to, token, pair, target_of(p.to, token, pair), x, y);
}

}  // namespace

void rope_to_pages(const RopeToPages& p, cudaStream_t stream) {
  const int64_t threads = p.tokens * (p.to.heads + 2 * p.to.kv_heads) * (p.to.dim / 2);
  if (threads == 0) return;
  with_type(p.type, [&](auto zero) {
    decoding::start<rotate_and_store<decltype(zero)>>(p, static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                                                      kThreads, 0, true, stream);
  });
}

}  // namespace lazy::ops::cuda
