// Rotation of a few tokens' q and k, and their keys and values into pages. A thread turns, or copies, two numbers.
#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/step.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr int kThreads = 256;

// Not inlined: its registers would be every thread's.
__device__ __noinline__ float2 turn_by(double frequency, int64_t position, double factor) {
  double s, c;
  sincos(static_cast<double>(position) * frequency, &s, &c);
  return {static_cast<float>(factor * c), static_cast<float>(factor * s)};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rotate_and_store(const __grid_constant__ RopeToPages p) {
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const int pairs = static_cast<int>(p.dim / 2), heads = static_cast<int>(p.heads), kv = static_cast<int>(p.kv_heads);
  const int of_token = (heads + 2 * kv) * pairs;
  const int index = blockIdx.x * kThreads + threadIdx.x, token = index / of_token;
  if (token >= p.tokens) return;
  const int pair = index % pairs, head = index / pairs % (heads + 2 * kv);
  const int64_t to_page = p.slots[token] * kv * p.dim;
  const T* from;
  T* to;
  if (head < heads) {
    from = static_cast<const T*>(p.q) + token * p.q_token + head * p.q_head;
    to = static_cast<T*>(p.q_out) + (int64_t{token} * heads + head) * p.dim;
  } else if (head < heads + kv) {
    from = static_cast<const T*>(p.k) + token * p.k_token + (head - heads) * p.k_head;
    to = static_cast<T*>(p.keys) + to_page + (head - heads) * p.dim;
  } else {
    from = static_cast<const T*>(p.v) + token * p.v_token + (head - heads - kv) * p.v_head;
    to = static_cast<T*>(p.values) + to_page + (head - heads - kv) * p.dim;
  }
  const int turned = static_cast<int>(p.table.pairs);
  if (head >= heads + kv || pair >= turned) {
    to[2 * pair] = from[2 * pair];
    to[2 * pair + 1] = from[2 * pair + 1];
    return;
  }
  const int64_t position = p.positions[token];
  const float2 angle =
      position < p.table.positions
          ? float2{__ldg(p.table.cos + position * turned + pair), __ldg(p.table.sin + position * turned + pair)}
          : turn_by(p.table.frequency[pair], position, p.table.attention_factor);
  const int first = p.interleaved ? 2 * pair : pair, second = p.interleaved ? first + 1 : pair + turned;
  const float x = to_float(from[first]), y = to_float(from[second]);
  to[first] = rounded<T>(fmaf(-y, angle.y, x * angle.x));
  to[second] = rounded<T>(fmaf(x, angle.y, y * angle.x));
}

}  // namespace

void rope_to_pages(const RopeToPages& p, cudaStream_t stream) {
  const int64_t threads = p.tokens * (p.heads + 2 * p.kv_heads) * (p.dim / 2);
  if (threads == 0) return;
  with_type(p.type, [&](auto zero) {
    decoding::start<rotate_and_store<decltype(zero)>>(p, static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                                                      kThreads, 0, true, stream);
  });
}

}  // namespace lazy::ops::cuda
