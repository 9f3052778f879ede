#include "ops/cuda/cumulative_lengths.h"

#include <cstdio>

#include "ops/cuda/launch.h"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) check_lengths(const CumulativeLengths p) {
  const auto at = [&](int64_t n) -> long long {
    return p.wide ? static_cast<const int64_t*>(p.data)[n] : static_cast<const int32_t*>(p.data)[n];
  };
  for (int64_t n = threadIdx.x; n < p.count; n += kThreads) {
    const long long found = at(n), least = n > 0 ? at(n - 1) : 0, most = n > 0 ? p.tokens : 0;
    if (found >= least && found <= most && (n + 1 < p.count || found == p.tokens)) continue;
    printf(
        "lazy::attention: expected cu_seqlens_%c to be nondecreasing from 0 to %lld (number of tokens), found %lld at "
        "index %lld\n",
        p.of_keys ? 'k' : 'q', static_cast<long long>(p.tokens), found, static_cast<long long>(n));
    __trap();
  }
}

}  // namespace

void check_cumulative_lengths(const CumulativeLengths& p, cudaStream_t stream) {
  check_lengths<<<1, kThreads, 0, stream>>>(p);
  check_launch("attention");
}

}  // namespace lazy::ops::cuda
