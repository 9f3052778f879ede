// Decode's two products by tensor cores, a warp at a time, K from a ring in shared memory, V straight from global
// memory: the fragments of mma.sync (m16n8k16) are what lanes get from 16-byte loads, because the order of the summed
// axis, and of the rows of the result, is free. Lane 4 g + c holds row g and columns 2 c, 2 c + 1 of an 8 x 8 fragment.
#pragma once
#include "attention/cuda/decode_rows.cuh"
#include "attention/cuda/mma.cuh"

namespace lazy::kernels::cuda::decoding {

// Two floats as two pairs of 16-bit numbers, high + low: together good to 16 bits and more.
template <typename T>
__device__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack<T>(x, y);
  float x_high, y_high;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    x_high = __uint_as_float(high << 16);
    y_high = __uint_as_float(high & 0xFFFF0000u);
  } else {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&high));
    x_high = both.x;
    y_high = both.y;
  }
  low = pack<T>(x - x_high, y - y_high);
}

// A warp's piece of shared memory in the scores kernel: with tensor cores a ring of in-flight keys; its rows;
// offsets of its keys, but where they follow one another; without tensor cores products dots[r * stride + n].
struct KeyMemory {
  char* ring;
  RowView* views;
  int64_t* offsets;
  float* dots;
  int stride;
  __device__ KeyMemory(const Params& p, char* memory, int ring_bytes)
      : ring(memory),
        views(reinterpret_cast<RowView*>(memory + ring_bytes)),
        offsets(reinterpret_cast<int64_t*>(views + kRows)),
        dots(reinterpret_cast<float*>(offsets + p.part)),
        stride(p.part + 4) {}
};
// Of a multiprocessor's 16 warps, far more than it takes to keep memory busy.
constexpr int ring_bytes(int size) { return size == 256 ? 16384 : 8192; }
constexpr int key_bytes(int part, int rows, bool offsets, bool dots, int ring) {
  const int views = kRows * static_cast<int>(sizeof(RowView));
  return ring + views + (offsets ? part * 8 : 0) + (dots ? rows * (part + 4) * 4 : 0);
}

// T: __nv_bfloat16 or __half. D: head sizes up to this, 64, 128 or 256; multiples of 8.
template <typename T, int D>
struct TensorCores {
  static constexpr int kBlocks = D == 256 ? 3 : 4;       // blocks a multiprocessor
  static constexpr int kDepth = D == 256 ? 1 : 256 / D;  // units of 16 keys at a time; of V in flight: 256 bytes a lane

  // A warp's part: scores of keys [begin, begin + count), kept; part[r * p.max_parts] for every row. Keys come through
  // the ring: memory is at its fastest when a row is asked for at once, and fragments would ask for 64 bytes of it. A
  // is 16 keys by 16 dimensions, B the rows. Lane (g, c) has dimensions 8 c ... 8 c + 7 of every 32, of keys g and g +
  // 8 and of row g.
  template <bool PAGED>
  static __device__ void key_part(const Params& p, const RowTile& t, int begin, int count, char* memory, float2* part) {
    constexpr int kLoads = D / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, units = (count + kPad - 1) / kPad;
    const uint64_t policy = read_once_policy();
    const KeyMemory m(p, memory, ring_bytes(D));
    Keys simple = simple_keys(p, t);
    simple.end = min(simple.end, begin + count);
    if constexpr (PAGED) {
      bool bad = false;
      for (int n = lane; n < kPad * units; n += 32) {
        const int64_t at = n < count ? paged_offset(p, p.k, t.batch, begin + n) : kAbsent;
        m.offsets[n] = at;
        bad |= at == kBadPage;
      }
      if (__any_sync(~0u, bad)) simple.end = simple.begin;
    }
    if (lane < kRows) m.views[lane] = make_view(p, t, min(lane, t.rows - 1));
    __syncwarp();
    // A stage of the ring: 16 keys of D dimensions; 16 bytes at `chunk` of row r stand at chunk ^ 4 (r % 2), so that
    // eight lanes, two rows of four chunks, read from all banks.
    constexpr int kChunks = D / 8, kCopies = kPad * kChunks / 32, kStage = kPad * D * 2,
                  kStages = ring_bytes(D) / kStage;
    const T* k = static_cast<const T*>(p.k.data) + t.kv_head * p.k.head + lane % kChunks * 8;
    const uint32_t ring = shared_address(m.ring);
    const bool inside = lane % kChunks * 8 < p.head_dim;
    if constexpr (!PAGED) k += plain_offset(p.k, t.batch, begin);
    auto issue_copy = [&](int unit) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = (32 / kChunks) * i + lane / kChunks, n = kPad * unit + row;
        bool there = n < count && inside;
        const T* from = k;
        if constexpr (PAGED) {
          const int64_t at = there ? m.offsets[n] : kAbsent;
          there = present(at);
          if (there) from += at;
        } else {
          if (there) from += n * p.k.token;
        }
        copy_once(ring + unit % kStages * kStage + row * D * 2 + (lane % kChunks ^ row % 2 * 4) * 16, from, there,
                  policy);
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) issue_copy(i);
    uint4 q[kLoads];
    load_row(p, t, g, c, q);
    // Of rows 2 c and 2 c + 1, among the lane's keys.
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    float* kept = p.scores + (t.kept + 2 * c) * p.columns + (begin - t.sequence.first) + g;
    const bool stored[2] = {2 * c < t.rows, 2 * c + 1 < t.rows};
    for (int first = 0; first < units; first += kDepth) {
      float s[kDepth][4] = {};  // key g (e < 2) or g + 8, row 2 c or 2 c + 1
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        const int unit = first + i;
        wait_for_copies<kStages - 1>();
        __syncwarp();
        const uint32_t stage = ring + unit % kStages * kStage + g * D * 2;
#pragma unroll
        for (int n = 0; n < kLoads; ++n) {
          const uint32_t at = stage + (4 * n + c ^ g % 2 * 4) * 16;
          const uint4 a = load_shared(at), b = load_shared(at + 8 * D * 2);
          mma<T>(s[i], {a.x, b.x, a.y, b.y}, q[n].x, q[n].y);
          mma<T>(s[i], {a.z, b.z, a.w, b.w}, q[n].z, q[n].w);
        }
        __syncwarp();
        issue_copy(unit + kStages);  // beyond the last unit: zeros that nobody reads
      }
      const int key = begin + kPad * first;
      if (key >= simple.begin && key + kPad * kDepth <= simple.end) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            s[i][e] *= p.scale;
            if (stored[e % 2]) kept[(e % 2 ? p.columns : 0) + kPad * i + 8 * (e / 2)] = s[i][e];
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const RowView row = m.views[2 * c + e % 2];
            const int n = kPad * (first + i) + 8 * (e / 2) + g;
            s[i][e] = finish_score(p, row, begin + n, s[i][e]);
            if (PAGED && n < count && m.offsets[n] == kBadPage) s[i][e] = NAN;
            if (stored[e % 2] && n < count) kept[(e % 2 ? p.columns : 0) + kPad * i + 8 * (e / 2)] = s[i][e];
            if (n >= count || begin + n < row.begin || begin + n >= row.end) s[i][e] = -INFINITY;
          }
        }
      }
      kept += kPad * kDepth;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = largest[r];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) most = fmaxf(most, fmaxf(s[i][r], s[i][2 + r]));
        const float base = most == -INFINITY ? 0 : most;
        float more = sum[r] * __expf(largest[r] - base);
#pragma unroll
        for (int i = 0; i < kDepth; ++i) more += __expf(s[i][r] - base) + __expf(s[i][2 + r] - base);
        sum[r] = more;
        largest[r] = most;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = largest[r];
      for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      const float base = most == -INFINITY ? 0 : most;
      float all = sum[r] * __expf(largest[r] - base);
      for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(~0u, all, step);
      if (g == 0 && stored[r]) part[static_cast<int64_t>(2 * c + r) * p.max_parts] = {most, all};
    }
    wait_for_copies<0>();
  }

  // Row g's dimensions as scores() wants them; zeros where there is none.
  static __device__ void load_row(const Params& p, const RowTile& t, int g, int c, uint4 (&q)[D / 32]) {
    const T* row = static_cast<const T*>(p.q.data) + t.batch * p.q.batch;
    if (g < t.rows) row += t.query(p, g) * p.q.token + t.head(p, g) * p.q.head;
#pragma unroll
    for (int n = 0; n < D / 32; ++n) {
      const int d = 32 * n + 8 * c;
      q[n] = {};
      if (g >= t.rows || d >= p.head_dim) continue;
      if (p.q_aligned) {
        q[n] = __ldg(reinterpret_cast<const uint4*>(row + d));
      } else {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto* half = reinterpret_cast<const uint16_t*>(row);
          word[i] = half[(d + 2 * i) * p.q.dim] | static_cast<uint32_t>(half[(d + 2 * i + 1) * p.q.dim]) << 16;
        }
        q[n] = {word[0], word[1], word[2], word[3]};
      }
    }
  }

  // Sums of weighted rows of V. A is 16 dimensions by 16 keys, B the keys' weights. Lane (g, c) loads dimensions 8 g
  // ... 8 g + 7 of every 64, of keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9; word w of two neighbouring keys makes rows g and g
  // + 8 of A: dimensions 8 g + 2 w and 8 g + 2 w + 1.
  struct Sums {
    static constexpr int kLoads = D / 64;
    float sum[4 * kLoads][4] = {};

    __device__ void add(const Params& p, const RowTile& t, const AliveList& list, int count) {
      const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, units = (count + kPad - 1) / kPad;
      const uint64_t policy = read_once_policy();
      const T* v = static_cast<const T*>(p.v.data) + t.kv_head * p.v.head + 8 * g;
      uint4 x[kDepth][4][kLoads];
      auto load = [&](int unit, uint4(&to)[4][kLoads]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t at = unit < units ? list.at[kPad * unit + 2 * c + i % 2 + i / 2 * 8] : kAbsent;
#pragma unroll
          for (int n = 0; n < kLoads; ++n) {
            to[i][n] = present(at) && 64 * n + 8 * g < p.value_dim ? load_once(v + at + 64 * n, policy) : uint4{};
          }
        }
      };
#pragma unroll
      for (int i = 0; i < kDepth; ++i) load(i, x[i]);
      for (int first = 0; first < units; first += kDepth) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          const int unit = first + i;
          if (unit >= units) break;
          float2 weight[2] = {};
          if (g < t.rows) {
            const float* from = list.weight + g * list.stride + kPad * unit + 2 * c;
            weight[0] = *reinterpret_cast<const float2*>(from);
            weight[1] = *reinterpret_cast<const float2*>(from + 8);
          }
          uint32_t high[2], low[2];
#pragma unroll
          for (int h = 0; h < 2; ++h) split<T>(weight[h].x, weight[h].y, high[h], low[h]);
#pragma unroll
          for (int n = 0; n < kLoads; ++n) {
            const uint4 &x0 = x[i][0][n], &x1 = x[i][1][n], &x2 = x[i][2][n], &x3 = x[i][3][n];
            add_word(sum[4 * n], x0.x, x1.x, x2.x, x3.x, high, low);
            add_word(sum[4 * n + 1], x0.y, x1.y, x2.y, x3.y, high, low);
            add_word(sum[4 * n + 2], x0.z, x1.z, x2.z, x3.z, high, low);
            add_word(sum[4 * n + 3], x0.w, x1.w, x2.w, x3.w, high, low);
          }
          load(unit + kDepth, x[i]);
        }
      }
    }

    static __device__ void add_word(float (&to)[4], uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3,
                                    const uint32_t (&high)[2], const uint32_t (&low)[2]) {
      constexpr uint32_t kLower = 0x5410, kUpper = 0x7632;  // halves of two words, the first's in the lower half
      const uint32_t a[4] = {__byte_perm(x0, x1, kLower), __byte_perm(x0, x1, kUpper), __byte_perm(x2, x3, kLower),
                             __byte_perm(x2, x3, kUpper)};
      mma<T>(to, a, high[0], high[1]);
      mma<T>(to, a, low[0], low[1]);
    }

    // to[r * value_dim + d]
    __device__ void store(const Params& p, const RowTile& t, float* to) const {
      const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
      for (int n = 0; n < 4 * kLoads; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {  // dimension of g (e < 2) or g + 8, row 2 c or 2 c + 1
          const int d = n / 4 * 64 + 8 * g + n % 4 * 2 + e / 2, r = 2 * c + e % 2;
          if (r < t.rows && d < p.value_dim) to[r * p.value_dim + d] = sum[n][e];
        }
      }
    }
  };
};

}  // namespace lazy::kernels::cuda::decoding
