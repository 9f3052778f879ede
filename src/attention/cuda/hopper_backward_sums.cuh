// Sums of the Hopper backward that are accumulated outside of registers: the gradient of the distance bias, and dQ.
#pragma once
#include <type_traits>

#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

// The method by which the first kernel of the backward computed the row states (BackwardRowState). If it used the
// 16-bit tensors `out` and alive_sum, the gradients contain the rounding errors of these tensors.
enum class RowSums {
  softmax,  // from d_out . out; the gradient of the distance bias is then not computed
  elastic,  // from d_out . out and d_out . alive_sum; the gradient of the distance bias is summed from 16-bit ds
  exact,    // from a sweep over the keys in fp32
};

// Computes the gradient of the distance bias for a block of keys, one head at a time. It is the sum of ds (the
// gradients of the scores) over all pairs with the same distance, which are on one diagonal of a tile. The order of all
// additions is fixed. There are two arrays of sums by distance with `window` floats each; move() adds the two arrays.
// FIXED is the number of floats in shared memory that precede the two arrays.
template <int FIXED>
struct DistanceSums {
  static constexpr int floats(int window) { return FIXED + 2 * window; }
  float* memory;
  int window;
  __device__ float* sums() const { return memory + FIXED; }
  // Clears the memory. thread: index among the block's 256 consumer threads.
  __device__ void start(int thread) {
    for (int n = thread; n < floats(window); n += 256) memory[n] = 0;
    asm volatile("bar.sync 1, 256;" ::: "memory");
  }
  // Moves the sums of a head to its slab, a part of Params::bias_slabs in global memory. A barrier of all consumers
  // must precede and follow the call.
  __device__ void move(int thread, float* slab) {
    for (int n = thread; n < window; n += 256) {
      slab[n] = sums()[n] + sums()[window + n];
      sums()[n] = sums()[window + n] = 0;
    }
  }
};

// Sums the fp32 ds in registers along diagonals. Each warp sums the diagonals of its 16 keys x 64 rows in its own
// scratch memory. The sums of the four warps of a warpgroup are added one step later, after a barrier that the
// computation of ds requires anyway.
constexpr int kDiagonals = 80;       // diagonals per warp; 79 of them are used: row - key from -15 to 63
constexpr int kDiagonalStride = 88;  // stride between keys; 24 modulo 32, so that float2 accesses use all banks
constexpr int kDiagonalScratch = 8 * kDiagonalStride + 8;
// Layout of the memory: eight scratch areas (each has 72 numbers for each of eight keys, surrounded by zeros), then the
// warps' sums of two steps, then the sums by distance of the two warpgroups.
struct ExactDiagonals : DistanceSums<8 * kDiagonalScratch + 2 * 8 * kDiagonals> {
  // Sums the warp's ds (16 keys x 64 rows in the accumulator layout) along diagonals and stores the sums for take().
  // Row r + 8 at column block n + 1 is on the same diagonal as row r at column block n.
  __device__ void put(int thread, const float (&ds)[32], int step) {
    const int lane = thread % 32, warp = thread / 32;
    float* const own = memory + warp * kDiagonalScratch;
    float* const to = own + lane / 4 * kDiagonalStride + 8 + 2 * (lane % 4);
    __syncwarp();
#pragma unroll
    for (int n = -1; n < 8; ++n) {
      float x[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float upper = n >= 0 ? ds[4 * max(n, 0) + e] : 0, lower = n < 7 ? ds[4 * min(n + 1, 7) + 2 + e] : 0;
        x[e] = upper + lower;
      }
      *reinterpret_cast<float2*>(to + 8 * (n + 1)) = make_float2(x[0], x[1]);
    }
    __syncwarp();
#pragma unroll
    for (int y = lane; y < kDiagonals; y += 32) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < 8; ++r) sum += own[r * (kDiagonalStride + 1) + y + 1];
      memory[8 * kDiagonalScratch + (step % 2 * 8 + warp) * kDiagonals + y] = sum;
    }
  }
  // Adds the sums that the warps computed for one step to the sums by distance. All warps must have called put() for
  // this step. first: position of the step's first row minus the block's first key.
  template <typename T>
  __device__ void take(int thread, int step, int first, uint32_t) {
    const int group = thread / 128, x = thread % 128, distance = first - 64 * group - 63 + x;
    const float* const parts_of = memory + 8 * kDiagonalScratch + (step % 2 * 8 + group * 4) * kDiagonals;
    if (x >= 127 || distance < 0 || distance >= window) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int y = x - 48 + 16 * w;
      if (y >= 0 && y < kDiagonals - 1) sum += parts_of[w * kDiagonals + y];
    }
    sums()[group * window + distance] += sum;
  }
  __device__ void end(int, int) {}
};

// Sums the 16-bit ds (gradients of the scores), which were stored in shared memory for dQ, along diagonals. The tile of
// 128 keys x 64 rows is divided into blocks of 8 keys x 8 rows. The blocks with the same difference (row block - key
// block) form a block diagonal. They are added elementwise, with two elements per lane. There are 23 block diagonals
// for eight warps, and each warp adds 16 blocks.
//
// Each step processes the 64 rows after the rows of the previous step. A block diagonal therefore extends over three
// consecutive steps, in which the same warp adds its blocks: in the first step to `opened`, then to `passed`, then to
// `closed`. After that, the elements of the resulting 8 x 8 block are added along its 15 diagonals.
//
// Layout of the memory: one float4 per thread for unfinished block diagonals, then eight scratch areas of 8 x 8, then
// the sums by distance. The sums by distance are separate for the elements on and above the diagonal of an 8 x 8 block
// and for the elements below it.
struct RoundedDiagonals : DistanceSums<4 * 256 + 8 * 64> {
  __device__ void put(int, const float (&)[32], int) {}
  // Adds the ds at the shared address `tile` to the sums by distance. `first`: see ExactDiagonals::take.
  template <typename T>
  __device__ void take(int thread, int, int first, uint32_t tile) {
    const int lane = thread % 32, warp = thread / 32;
    // Sums of the blocks with row block - key block = warp + 1 (opened), warp - 7 (passed) and warp - 15 (closed).
    float2 opened{}, passed{}, closed{};
    auto add = [](float2& sum, const float2& x) {
      sum.x += x.x;
      sum.y += x.y;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int block = 4 * half + lane / 8;  // row block; the lane passes the address of one of its eight rows
      uint32_t x[4];
      load_matrices(x, tile + swizzled(8 * ((block + 15 - warp) % 16) + lane % 8, block));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 pair = unpack<T>(x[n]), none{};
        const bool closes = 4 * half + n <= warp;
        add(closed, closes ? pair : none);
        add(opened, closes ? none : pair);
      }
      load_matrices(x, tile + swizzled(8 * (block + 7 - warp) + lane % 8, block));
#pragma unroll
      for (int n = 0; n < 4; ++n) add(passed, unpack<T>(x[n]));
    }
    close(thread, first, closed, passed, opened);
  }
  // Finishes the diagonals that are not complete yet. Must be called after the last step of a head. Sums for distances
  // outside of the window of the distance bias are discarded.
  __device__ void end(int thread, int first) {
    close(thread, first + 64, {}, {}, {});
    close(thread, first + 128, {}, {}, {});
  }

 private:
  __device__ void close(int thread, int first, float2 closed, float2 passed, float2 opened) {
    const int lane = thread % 32, warp = thread / 32;
    float4& under_way = reinterpret_cast<float4*>(memory)[thread];
    float* const own = memory + 4 * 256 + warp * 64;
    const float4 before = under_way;
    under_way = {before.z + passed.x, before.w + passed.y, opened.x, opened.y};
    __syncwarp();
    reinterpret_cast<float2*>(own)[lane] = {closed.x + before.x, closed.y + before.y};  // layout [key][row]
    __syncwarp();
    const int ahead = lane - 7;  // row - key of the lane's diagonal; there are 15 diagonals
    float sum = 0;
#pragma unroll
    for (int key = 0; key < 8; ++key) {
      const int row = key + ahead;
      if (row >= 0 && row < 8) sum += own[8 * key + row];
    }
    const int distance = first + 8 * (warp - 15) + ahead;
    if (lane < 15 && distance >= 0 && distance < window) sums()[(ahead < 0 ? window : 0) + distance] = sum;
  }
};

template <RowSums SUMS>
using Diagonals = std::conditional_t<SUMS == RowSums::exact, ExactDiagonals, RoundedDiagonals>;

// Adds four consecutive numbers to the fp32 sums of dQ. Every block of keys adds to these sums atomically, and a
// separate kernel converts them to d_q. The sums have the layout of the products' accumulators, with four consecutive
// numbers per thread.
__device__ inline void reduce_add(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Returns the address of the fp32 sums of dQ for a tile of 64 rows. p.dq_sum has the shape (batch, head, tile, 64 D);
// the last axis has D / 4 numbers for each of 256 threads.
__device__ inline float* hopper_dq(const Params& p, const Tile& t, int D, int head, int tiles, int tile) {
  return p.dq_sum + ((static_cast<int64_t>(t.batch) * p.heads + head) * tiles + tile) * 64 * D;
}

// Applies the inverse rotation of RoPE (Params::cos and sin) for row `token` to the pairs (first[e], second[e]), which
// begin at column `pair`.
__device__ inline void rotate_back(const Params& p, int D, int token, int pair, float* first, float* second) {
  // Rows beyond q_length are not stored, so their angles do not matter.
  const int64_t at = static_cast<int64_t>(min(token, p.q_length - 1)) * (D / 2) + pair;
  const float2 c = __ldg(reinterpret_cast<const float2*>(p.cos + at));
  const float2 s = __ldg(reinterpret_cast<const float2*>(p.sin + at));
  const float x[2] = {first[0], first[1]};
  first[0] = fmaf(x[0], c.x, second[0] * s.x);
  first[1] = fmaf(x[1], c.y, second[1] * s.y);
  second[0] = fmaf(second[0], c.x, -x[0] * s.x);
  second[1] = fmaf(second[1], c.y, -x[1] * s.y);
}

// Computes d_q = scale * sums, with one block per tile of 64 rows. The values are staged in shared memory, so that
// stores write 16 bytes. A thread processes the same columns in both halves of a row, because these columns form the
// pairs of the RoPE rotation.
template <typename T, int D>
__global__ void __launch_bounds__(256) finish_dq(const __grid_constant__ Params p, int row_tiles) {
  constexpr int stride = D + 8;  // in elements; padded by 8 to avoid bank conflicts
  __shared__ __align__(16) T tile_of[64 * stride];
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  const int tile = blockIdx.x % row_tiles;
  if (!locate(p, tile, 64, false, t)) return;
  constexpr int mine = D / 32;  // number of blocks of eight columns that a thread processes in each half of a row
  const int first = threadIdx.x / 128 * mine, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = warp * 16 + lane / 4, column = 2 * (lane % 4);
  const float4* from =
      reinterpret_cast<const float4*>(hopper_dq(p, t, D, t.head, row_tiles, tile)) + threadIdx.x % 128 + first * 256;
  alignas(16) float x[mine][2][4];  // last axis: two elements of `row`, two of row + 8
#pragma unroll
  for (int n = 0; n < mine; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float4*>(x[n][half]) = __ldcs(from + n * 256 + half * 128);
    }
  }
#pragma unroll
  for (int n = 0; n < mine; ++n) {
    const int at = 8 * (first + n) + column;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (p.cos) rotate_back(p, D, t.first + row + 8 * r, at, x[n][0] + 2 * r, x[n][1] + 2 * r);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint32_t*>(tile_of + (row + 8 * r) * stride + half * D / 2 + at) =
            pack<T>(p.scale * x[n][half][2 * r], p.scale * x[n][half][2 * r + 1]);
      }
    }
  }
  __syncthreads();
  T* to = static_cast<T*>(p.d_q.data) + q_offset(p.d_q, t, t.head, t.first);
#pragma unroll
  for (int n = threadIdx.x; n < 64 * (D / 8); n += 256) {
    const int row = n / (D / 8), chunk = n % (D / 8);
    if (t.first + row < t.q_length && chunk * 8 < p.head_dim) {
      *reinterpret_cast<uint4*>(to + row * p.d_q.token + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile_of + row * stride + chunk * 8);
    }
  }
}

}  // namespace lazy::kernels::cuda::hopper
