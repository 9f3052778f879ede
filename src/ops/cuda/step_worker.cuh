// Matrix products of a worker warp (a computing warp) of fused_decode_layers.cu.
#pragma once
#include "ops/cuda/fused_decode_layers.cuh"

namespace lazy::ops::cuda::step {

__device__ inline void worker_barrier() { named_barrier<kWorkerThreads>(); }

template <typename T, int D>
struct Worker {
  using Scores = decoding::TensorCores<T, D>;
  // Shared memory of a worker warp: a ring buffer for keys or values, the list of value rows with their weights, and
  // the worker warp's part of x.
  static constexpr int kListed = kPiece + kUnitKeys, kListBytes = kListed * (8 + 4),
                       kXAt = Scores::kRingBytes + kListBytes;

  const Layers& s;
  StepShared<D>& shared;
  const char* weights;  // the ring buffer of slots with weights
  char* own;
  int warp, lane, g, c;  // lane = 4 g + c
  RingSlot slot{};
  int room = 0;

  // Computes the products of x with the units (groups of rows) of the matrix that belong to this block. x is received
  // as words with flag `flag`; each worker warp receives its part of the inner dimension. For MatrixKind::heads and
  // MatrixKind::gate_up, x is normalized (RMSNorm). `stream` points to the words of the residual stream, to which
  // `finish` adds the product, or is null. Calls finish(there, unit, r, y, before) for each element r of a unit, in a
  // separate thread; `before` is the word of the stream. Whole warps call finish; `there` is false for threads without
  // an element.
  template <MatrixKind KIND, typename Finish>
  __device__ void multiply(const Matrix& m, const float* norm_weight, const Word* x, uint32_t flag, const Word* stream,
                           const Finish& finish) {
    constexpr bool kNorm = has_halves(KIND);
    constexpr int kRows = rows_of(KIND);
    const int chunks = m.in / kColumnsAtOnce, blocks = gridDim.x;
    bool taken = false;
#pragma unroll 1
    for (int first = first_unit(KIND); first < m.units; first += kUnits * blocks) {
      const int units = min((m.units - first + blocks - 1) / blocks, kUnits);
      const int own_unit = threadIdx.x / kRows, r = threadIdx.x % kRows, unit = first + own_unit * blocks;
      const bool there = own_unit < units;
      // The word of the residual stream to which the result is added. This thread wrote it, or a different thread wrote
      // it much earlier, so it is loaded without waiting.
      Word before[1] = {0};
      if (stream && there) get_words(stream + unit * 4 + r / 2, before);
      if (!taken) take<kNorm, KIND == MatrixKind::down ? 3 : 1>(m, norm_weight, x, flag);
      taken = true;
      __syncwarp();
      float sum[kUnits][4] = {};
      switch (units) {
        case 1:
          add_units<KIND, 1>(m, sum);
          break;
        case 2:
          add_units<KIND, 2>(m, sum);
          break;
        default:
          add_units<KIND, 3>(m, sum);
      }
      ProductRoom& to = shared.rooms[room];
      room ^= 1;
      if (c == 0) {  // all columns of the result are equal, so only the lanes of column 0 store it
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          to.products[warp][u * kRows + g] = sum[u][0];
          if constexpr (kRows == 16) to.products[warp][u * kRows + 8 + g] = sum[u][2];
        }
      }
      if constexpr (kNorm) {
        const float square = sum_of_squares(chunks);
        if (lane == 0) to.squares[warp] = square;
      }
      worker_barrier();
      if (warp * 32 >= units * kRows) continue;
      float y = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) y += to.products[part][own_unit * kRows + r];
      if constexpr (kNorm) {
        float squares = 0;
#pragma unroll
        for (int part = 0; part < kParts; ++part) squares += to.squares[part];
        y *= 1 / sqrtf(squares / static_cast<float>(m.in) + s.eps);
      }
      finish(there, unit, r, y, before[0]);
    }
  }

  // Packs the values of two adjacent lanes into one word, which the first of the two lanes stores.
  __device__ uint32_t put_pair(bool there, Word* to, float y, uint32_t flag) const {
    const float next = __shfl_down_sync(~0u, y, 1);
    const uint32_t both = kernels::cuda::pack<T>(y, next);
    if (there && lane % 2 == 0) put_word(to, flagged(both, flag));
    return both;
  }
  // Returns y, rounded to T, plus the element of the stream for row r. `before` is the word that contains this element.
  // If its flag is not `flag`, waits for the word at `from`.
  __device__ static float add(Word before, const Word* from, uint32_t flag, int r, float y) {
    if (!is_of(before, flag)) before = wait_for_word(from, flag);
    const float2 a = kernels::cuda::unpack<T>(data(before));
    return rounded<T>(y) + (r % 2 == 0 ? a.x : a.y);
  }

 private:
  // Receives the chunks of x that this warp multiplies, multiplies them by the norm weights, and stores them in the
  // warp's part of shared memory. If NORM is true, the original values are stored after them for the sum of squares.
  template <bool NORM, int AT_ONCE>
  __device__ void take(const Matrix& m, const float* norm_weight, const Word* x, uint32_t flag) const {
    const int numbers = m.in / kParts;
#pragma unroll 1
    for (int first = 4 * lane; first < numbers; first += 128 * AT_ONCE) {
      const Word* from[AT_ONCE];
      Word got[AT_ONCE][2];
      float4 w[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int n = first + 128 * i, k = (n / kChunk * kParts + warp) * kChunk + n % kChunk;
        from[i] = n < numbers ? x + k / 2 : nullptr;
        if constexpr (NORM) w[i] = from[i] ? __ldg(reinterpret_cast<const float4*>(norm_weight + k)) : float4{};
      }
      wait_for_words<2>(from, flag, got);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        if (!from[i]) continue;
        auto* const to = reinterpret_cast<uint2*>(own + kXAt + 2 * (first + 128 * i));
        const uint2 v{data(got[i][0]), data(got[i][1])};
        if constexpr (NORM) {
          float squares = 0;  // not used, because sum_of_squares adds the squares, in the order of skinny_gemm.cu
          *to = {apply_norm_weight_pair<T>(v.x, w[i].x, w[i].y, squares),
                 apply_norm_weight_pair<T>(v.y, w[i].z, w[i].w, squares)};
          to[numbers / 4] = v;
        } else {
          *to = v;
        }
      }
    }
  }

  __device__ float sum_of_squares(int chunks) const {
    const char* const x = own + kXAt + (chunks * kChunk + c * 8) * 2;
    float square = 0;
#pragma unroll 2
    for (int i = 0; i < chunks; ++i) {
      apply_norm_weight<T>(*reinterpret_cast<const uint4*>(x + i * kChunk * 2), {1, 1, 1, 1}, {1, 1, 1, 1}, square);
    }
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    return square;
  }

  // Computes this warp's part of the sums of UNITS units. The rows of a unit are rows of operand A of the mma
  // instruction; all columns of operand B contain x.
  template <MatrixKind KIND, int UNITS>
  __device__ void add_units(const Matrix& m, float (&sum)[kUnits][4]) {
    constexpr int kRows = rows_of(KIND), kPitch = pitch_of(KIND), kEach = columns_of(KIND) / kColumnsAtOnce;
    const char* x = own + kXAt + c * 16;
#pragma unroll 1
    for (int left = m.in / kColumnsAtOnce; left > 0; left -= kEach) {
      const char* w[UNITS];
      int number[UNITS];
#pragma unroll
      for (int u = 0; u < UNITS; ++u) {
        number[u] = slot.number;
        w[u] = weights + slot.number * kSlotBytes + g * kPitch + warp * kChunk * 2 + c * 16;
        kernels::cuda::barrier_wait(&shared.full[slot.number], slot.round);
        slot.advance(s.slots);
      }
      const auto add_chunks = [&](int count) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          if (i >= count) break;
          const auto load = [](const char* from) { return *reinterpret_cast<const uint4*>(from); };
          const uint4 b = load(x + i * kChunk * 2);
          uint4 a[UNITS][2];
#pragma unroll
          for (int u = 0; u < UNITS; ++u) {
            const char* const from = w[u] + i * kColumnsAtOnce * 2;
            a[u][0] = load(from);
            a[u][1] = kRows == 16 ? load(from + 8 * kPitch) : uint4{};
          }
#pragma unroll
          for (int u = 0; u < UNITS; ++u) {
            kernels::cuda::mma<T>(sum[u], {a[u][0].x, a[u][1].x, a[u][0].y, a[u][1].y}, b.x, b.y);
          }
#pragma unroll
          for (int u = 0; u < UNITS; ++u) {
            kernels::cuda::mma<T>(sum[u], {a[u][0].z, a[u][1].z, a[u][0].w, a[u][1].w}, b.z, b.w);
          }
        }
      };
      left >= kEach ? add_chunks(kEach) : add_chunks(left);
      x += kEach * kChunk * 2;
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int u = 0; u < UNITS; ++u) kernels::cuda::barrier_arrive(&shared.empty[number[u]]);
      }
    }
  }
};

}  // namespace lazy::ops::cuda::step
