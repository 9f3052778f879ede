// Words that the blocks of one grid exchange through the L2 cache. All blocks must run at the same time. A word
// consists of 32 bits of data and a 32-bit flag that identifies the exchange. The receiver polls the word until the
// flag has the expected value. An exchange thus needs only the transfer of the data and no barrier, fence or counter.
// This works because 64-bit loads and stores are atomic (PTX memory model).
#pragma once
#include <cstdint>
#include <cstdio>

#include "ops/cuda/step_ptx.cuh"

namespace lazy::ops::cuda::step {

using Word = uint64_t;

__device__ inline Word flagged(uint32_t data, uint32_t flag) { return Word{flag} << 32 | data; }
__device__ inline Word flagged(float data, uint32_t flag) { return flagged(__float_as_uint(data), flag); }
__device__ inline uint32_t data(Word x) { return static_cast<uint32_t>(x); }
__device__ inline float number(Word x) { return __uint_as_float(data(x)); }
__device__ inline bool is_of(Word x, uint32_t flag) { return static_cast<uint32_t>(x >> 32) == flag; }

constexpr unsigned kMaxPolls = 1 << 22;  // polls before a timeout is reported; this many polls take a few seconds

static __device__ __noinline__ void give_up() {
  printf("lazy::fused_decode_layers: block %u of %u timed out while it waited for data of other blocks\n", blockIdx.x,
         gridDim.x);
  __trap();
}

// Polls N groups of SIZE (1 or 2) adjacent words until every word has the expected flag. The loads of all groups are
// issued together. The result for a null pointer is 0.
template <int SIZE, int N>
__device__ void wait_for_words(const Word* const (&from)[N], uint32_t flag, Word (&x)[N][SIZE]) {
  bool done[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    done[i] = !from[i];
#pragma unroll
    for (int n = 0; n < SIZE; ++n) x[i][n] = 0;
  }
  for (unsigned polls = 0;; ++polls) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!done[i]) get_words(from[i], x[i]);
    }
    bool all = true;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!done[i]) {
        done[i] = true;
#pragma unroll
        for (int n = 0; n < SIZE; ++n) done[i] = done[i] && is_of(x[i][n], flag);
      }
      all = all && done[i];
    }
    if (all) return;
    if (polls == kMaxPolls) give_up();
    let_others_write();
  }
}

__device__ inline Word wait_for_word(const Word* from, uint32_t flag) {
  const Word* const one[1] = {from};
  Word x[1][1];
  wait_for_words<1>(one, flag, x);
  return x[0][0];
}

}  // namespace lazy::ops::cuda::step
