// Products of few rows with a matrix that is read once, by tensor cores: rows of W are the rows of mma's A, rows of x
// the columns of B. A block has ROWS rows of W; its warps share the summed axis, of which a line of 64 numbers, 128
// bytes, is a warp's piece. Lines of W come through a ring in shared memory, as keys do in
// attention/cuda/decode_products.cuh, and lie there in the same order; the first are asked for before the kernels in
// front have ended. Fragments are what lanes get from 16-byte loads, because the order of the summed axis is free.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "attention/cuda/mma.cuh"
#include "ops/cuda/to_pages.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kLine = 64, kHalf = kLine / 2;  // of the summed axis

constexpr unsigned kEnoughBlocks = 96, kAtOnceBlocks = 264;  // of an H100 and an H200, which have 132 multiprocessors

enum class Mode { plain, swiglu, pages };  // what is made of the products

constexpr int stride(int groups) { return 8 * groups + 1; }  // of the products in shared memory
// Of a warp: `lines` lines of W, then the products.
constexpr int warp_bytes(int rows, int groups, int lines) {
  return rows * std::max(lines * kLine * 2, stride(groups) * 4);
}
constexpr int shared_bytes(int rows, int groups, int lines) {
  return kWarps * (warp_bytes(rows, groups, lines) + 8 * groups * 4);
}

constexpr unsigned blocks_of(int64_t x, int64_t by) { return static_cast<unsigned>((x + by - 1) / by); }

// Two neighbouring numbers of x, with the residual added.
template <typename T>
__device__ uint32_t add_pair(uint32_t x, uint32_t residual) {
  const float2 a = kernels::cuda::unpack<T>(x), b = kernels::cuda::unpack<T>(residual);
  return kernels::cuda::pack<T>(a.x + b.x, a.y + b.y);
}
template <typename T>
__device__ uint32_t weigh_pair(uint32_t x, float w0, float w1, float& squares) {
  const float2 a = kernels::cuda::unpack<T>(x);
  squares = fmaf(a.x, a.x, fmaf(a.y, a.y, squares));
  return kernels::cuda::pack<T>(a.x * w0, a.y * w1);
}

template <typename T>
__device__ void store_rounded(void* to, int64_t at, bool wide, float x) {
  if (wide) {
    static_cast<float*>(to)[at] = x;
  } else {
    static_cast<T*>(to)[at] = rounded<T>(x);
  }
}

// ROWS: of W, a block; 8 of them leave half of A empty. GROUPS: of 8 rows of x, a block. LINES: of W in flight, a warp.
// HALVES: of lines of x in flight, a warp. Grid: (groups of rows of x, rows of W). The order of additions follows from
// `in` alone.
template <typename T, int ROWS, int GROUPS, int LINES, int HALVES, bool NORM, Mode MODE>
__global__ void __launch_bounds__(kThreads, GROUPS <= 4 ? 2 : 1) multiply(const __grid_constant__ FewRows p) {
  constexpr int kTiles = (ROWS + 15) / 16, kCopies = ROWS / 4, kStage = ROWS * kLine * 2;
  constexpr bool kPairs = MODE != Mode::plain;        // rows g and g + 8 of a tile belong together
  constexpr int kResults = kPairs ? ROWS / 2 : ROWS;  // of a row of x, a block
  static_assert(ROWS % 16 == 0 || (ROWS == 8 && !kPairs));
  extern __shared__ __align__(16) char memory[];
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
  char* const mine = memory + warp * warp_bytes(ROWS, GROUPS, LINES);
  auto* const squares = reinterpret_cast<float*>(memory + kWarps * warp_bytes(ROWS, GROUPS, LINES));  // (warps, rows)
  const uint32_t ring = kernels::cuda::shared_address(mine);
  const int in = static_cast<int>(p.in), out = static_cast<int>(p.out), rows = static_cast<int>(p.rows);
  const int first_row = blockIdx.x * 8 * GROUPS;
  const uint64_t policy = decoding::read_once_policy();
  const auto start_of = [&](int line) { return (warp + kWarps * line) * kLine; };

  // Of a line, lane n copies 16 bytes of rows n / 8, n / 8 + 4, ...
  const T* from[kCopies];  // null: no row
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int r = 4 * i + lane / 8;
    const int n = blockIdx.y * kResults + (kPairs ? r / 16 * 8 + r % 8 : r);
    int64_t row = n;
    if constexpr (MODE == Mode::swiglu) row += r / 8 % 2 * out;
    if constexpr (MODE == Mode::pages) {
      const Pair pair = pair_of(p.pages, n);
      row = pair.head * p.pages.dim + (r / 8 % 2 == 0 ? pair.first : pair.second);
    }
    from[i] = n < out ? static_cast<const T*>(p.W) + row * in + lane % 8 * 8 : nullptr;
  }
  const auto issue_copy = [&](int line) {
    const int k = start_of(line);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = 4 * i + lane / 8;
      const bool there = from[i] && k + lane % 8 * 8 < in;
      decoding::copy_once(ring + line % LINES * kStage + r * kLine * 2 + (lane % 8 ^ r % 2 * 4) * 16,
                          there ? from[i] + k : p.W, there, policy);
    }
    decoding::commit_copies();
  };
#pragma unroll
  for (int line = 0; line < LINES; ++line) issue_copy(line);
  if constexpr (NORM) {
    for (int k = threadIdx.x * kHalf; k < in; k += kThreads * kHalf) decoding::prefetch(p.norm_weight + k);
  }
  decoding::let_next_start();
  decoding::wait_for_launcher();

  // The number of a thread's first result among the block's, of its other ones kThreads more.
  const auto result_row = [&](int n) { return first_row + n / kResults; };
  const auto result_column = [&](int n) { return static_cast<int>(blockIdx.y) * kResults + n % kResults; };
  const auto is_result = [&](int n) {
    return n < kResults * 8 * GROUPS && result_row(n) < rows && result_column(n) < out;
  };
  constexpr bool kAimsFirst = GROUPS <= 2;  // where registers are left, while x is on its way
  [[maybe_unused]] PairTarget target;       // of a result
  const auto aim = [&](int n) {
    if (is_result(n)) target = target_of(p.pages, result_row(n), pair_of(p.pages, result_column(n)));
  };
  if constexpr (MODE == Mode::pages && kAimsFirst) aim(threadIdx.x);

  float sum[kTiles][GROUPS][4] = {};
  float square[GROUPS] = {};
  for (int first = 0; start_of(first / 2) < in; first += HALVES) {
    uint4 x[HALVES][GROUPS];
    const auto k_of = [&](int i) { return start_of((first + i) / 2) + (first + i) % 2 * kHalf + 8 * c; };
    const auto load_rows = [&](const void* of, int64_t of_row, uint4(&to)[HALVES][GROUPS]) {
#pragma unroll
      for (int i = 0; i < HALVES; ++i) {
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
          const int row = first_row + 8 * n + g, k = k_of(i);
          const T* at = static_cast<const T*>(of) + row * of_row + k;
          to[i][n] = k < in && row < rows ? __ldcg(reinterpret_cast<const uint4*>(at)) : uint4{};
        }
      }
    };
    load_rows(p.x, p.x_stride, x);
    if constexpr (NORM) {
      float4 norm[HALVES][2];
#pragma unroll
      for (int i = 0; i < HALVES; ++i) {
        const auto* at = reinterpret_cast<const float4*>(p.norm_weight + k_of(i));
        norm[i][0] = k_of(i) < in ? __ldg(at) : float4{};
        norm[i][1] = k_of(i) < in ? __ldg(at + 1) : float4{};
      }
      if (p.residual) {
        uint4 residual[HALVES][GROUPS];
        load_rows(p.residual, in, residual);
        // Stores come behind all loads, which do not pass them.
#pragma unroll
        for (int i = 0; i < HALVES; ++i) {
#pragma unroll
          for (int n = 0; n < GROUPS; ++n) {
            uint4& v = x[i][n];
            const uint4 r = residual[i][n];
            v = {add_pair<T>(v.x, r.x), add_pair<T>(v.y, r.y), add_pair<T>(v.z, r.z), add_pair<T>(v.w, r.w)};
            const int row = first_row + 8 * n + g, k = k_of(i);
            if (blockIdx.y == 0 && k < in && row < rows)
              *reinterpret_cast<uint4*>(static_cast<T*>(p.sum) + row * p.in + k) = v;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < HALVES; ++i) {
        const auto& [low, high] = norm[i];
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
          uint4& v = x[i][n];
          v = {weigh_pair<T>(v.x, low.x, low.y, square[n]), weigh_pair<T>(v.y, low.z, low.w, square[n]),
               weigh_pair<T>(v.z, high.x, high.y, square[n]), weigh_pair<T>(v.w, high.z, high.w, square[n])};
        }
      }
    }
#pragma unroll
    for (int i = 0; i < HALVES; ++i) {
      const int line = (first + i) / 2, half = (first + i) % 2;
      if (half == 0) {
        decoding::wait_for_copies<LINES - 1>();
        __syncwarp();
      }
      const uint32_t at = ring + line % LINES * kStage + g * kLine * 2 + (4 * half + c ^ g % 2 * 4) * 16;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 a = decoding::load_shared(at + 16 * t * kLine * 2),
                    b = ROWS > 8 ? decoding::load_shared(at + (16 * t + 8) * kLine * 2) : uint4{};
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
          kernels::cuda::mma<T>(sum[t][n], {a.x, b.x, a.y, b.y}, x[i][n].x, x[i][n].y);
          kernels::cuda::mma<T>(sum[t][n], {a.z, b.z, a.w, b.w}, x[i][n].z, x[i][n].w);
        }
      }
      if (half == 1) {
        __syncwarp();
        issue_copy(line + LINES);  // beyond the last line: zeros that nobody needs
      }
    }
  }
  decoding::wait_for_copies<0>();
  __syncwarp();

  auto* const products = reinterpret_cast<float*>(mine);  // (ROWS, stride)
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
      for (int e = 0; e < (ROWS > 8 ? 4 : 2); ++e) {  // row g (e < 2) or g + 8 of the tile, row 2 c or 2 c + 1 of x's
        products[(t * 16 + g + e / 2 * 8) * stride(GROUPS) + 8 * n + 2 * c + e % 2] = sum[t][n][e];
      }
    }
  }
  if constexpr (NORM) {
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      square[n] += __shfl_xor_sync(~0u, square[n], 1);
      square[n] += __shfl_xor_sync(~0u, square[n], 2);
      if (c == 0) squares[warp * 8 * GROUPS + 8 * n + g] = square[n];
    }
  }
  __syncthreads();
  for (int n = threadIdx.x; n < kResults * 8 * GROUPS; n += kThreads) {
    const int r = n % kResults, m = n / kResults, row = result_row(n), column = result_column(n);
    if (!is_result(n)) continue;
    float scale = 1;
    if constexpr (NORM) {
      float all = 0;
      for (int i = 0; i < kWarps; ++i) all += squares[i * 8 * GROUPS + m];
      scale = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
    }
    const auto product = [&](int of_block) {
      const char* at = memory + (of_block * stride(GROUPS) + m) * 4;
      float all = 0;
      for (int i = 0; i < kWarps; ++i) all += *reinterpret_cast<const float*>(at + i * warp_bytes(ROWS, GROUPS, LINES));
      return all * scale;
    };
    if constexpr (MODE == Mode::plain) {
      store_rounded<T>(p.y, row * p.out + column, p.wide, product(r));
    } else {
      const int at = r / 8 * 16 + r % 8;
      const float x = to_float(rounded<T>(product(at))), y = to_float(rounded<T>(product(at + 8)));
      if constexpr (MODE == Mode::swiglu) {
        store_rounded<T>(p.y, row * p.out + column, p.wide, x * __fdividef(1, 1 + __expf(-x)) * y);
      } else {
        if (!kAimsFirst || n >= kThreads) aim(n);
        store_pair<T>(p.pages, row, pair_of(p.pages, column), target, x, y);
      }
    }
  }
}

template <typename T, int ROWS, int GROUPS, int LINES, int HALVES, bool NORM, Mode MODE>
void launch(const FewRows& p, cudaStream_t stream) {
  const dim3 grid(blocks_of(p.rows, 8 * GROUPS), blocks_of(p.out, MODE == Mode::plain ? ROWS : ROWS / 2));
  decoding::start<multiply<T, ROWS, GROUPS, LINES, HALVES, NORM, MODE>>(
      p, grid, kThreads, shared_bytes(ROWS, GROUPS, LINES), true, stream);
}

// As many rows of W a block as leave every multiprocessor one: more of them read x less often. With up to 16 rows of x,
// of which there is little, as few as let all blocks run at once, so that all of W is asked for ahead.
template <typename T, bool NORM, Mode MODE>
void launch(const FewRows& p, cudaStream_t stream) {
  constexpr bool kPlain = MODE == Mode::plain;
  constexpr int kOfOne = MODE == Mode::swiglu ? 4 : 2, kOfMany = NORM ? 1 : 2;  // halves of x: registers are scarce
  const auto blocks = [&](int rows, int of_x) {
    return blocks_of(p.out, kPlain ? rows : rows / 2) * blocks_of(p.rows, of_x);
  };
  if (p.rows <= 16) {
    const unsigned of_16 = blocks(16, 16);
    const bool one = p.rows <= 8;
    if constexpr (kPlain && !NORM) {
      if (of_16 < kEnoughBlocks)
        return one ? launch<T, 8, 1, 6, 6, NORM, MODE>(p, stream) : launch<T, 8, 2, 6, 4, NORM, MODE>(p, stream);
    }
    if (of_16 <= kAtOnceBlocks)
      return one ? launch<T, 16, 1, 4, 4, NORM, MODE>(p, stream) : launch<T, 16, 2, 4, 2, NORM, MODE>(p, stream);
    return one ? launch<T, 32, 1, 2, kOfOne, NORM, MODE>(p, stream) : launch<T, 32, 2, 2, 2, NORM, MODE>(p, stream);
  }
  if (p.rows <= 32) {
    if (blocks(32, 32) >= kEnoughBlocks) return launch<T, 32, 4, 2, 1, NORM, MODE>(p, stream);
    return launch<T, 16, 4, 4, kOfMany, NORM, MODE>(p, stream);
  }
  if (blocks(32, 64) >= kEnoughBlocks) return launch<T, 32, 8, 2, 1, NORM, MODE>(p, stream);
  launch<T, 16, 8, 4, 1, NORM, MODE>(p, stream);
}

}  // namespace step

using namespace step;

void few_rows(const FewRows& p, cudaStream_t stream) {
  if (p.rows == 0 || p.out == 0) return;
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    const auto of_mode = [&]<Mode MODE>() {
      p.norm_weight ? launch<T, true, MODE>(p, stream) : launch<T, false, MODE>(p, stream);
    };
    if (!p.y) return launch<T, true, Mode::pages>(p, stream);
    p.swiglu ? of_mode.template operator()<Mode::swiglu>() : of_mode.template operator()<Mode::plain>();
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
}

}  // namespace lazy::ops::cuda
