// The two matrix products of decode on tensor cores (mma.sync, m16n8k16). Each warp works independently and copies K
// and V through a ring buffer in shared memory. Lane 4 g + c holds row g and columns 2 c, 2 c + 1 of an 8 x 8 fragment.
#pragma once
#include "attention/cuda/decode_rows.cuh"
#include "attention/cuda/mma.cuh"

namespace lazy::kernels::cuda::decoding {

// Represents each of two floats as a sum high + low of two 16-bit numbers, which is more precise than one 16-bit
// number.
template <typename T>
__device__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack<T>(x, y);
  const float2 kept = unpack<T>(high);
  low = pack<T>(x - kept.x, y - kept.y);
}

// Shared memory of a warp in the scores kernel.
//   ring: buffer for keys that are being copied (only with tensor cores)
//   views: RowView of every row of the tile
//   offsets: offset in the cache of every key, or of every unit of kPad keys; unused if the cache is contiguous
//   dots: dot products of row r and key n at dots[r * stride + n] (only without tensor cores)
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
// Returns the size in bytes of a warp's ring buffer for keys or values that are being copied. With 16 warps per
// multiprocessor, enough bytes are then in flight to saturate the memory bandwidth.
constexpr int ring_bytes(int size) { return size == 256 ? 16384 : 8192; }
constexpr int key_bytes(int part, int rows, int offsets, bool dots, int ring) {
  const int views = kRows * static_cast<int>(sizeof(RowView));
  return ring + views + offsets * 8 + (dots ? rows * (part + 4) * 4 : 0);
}

// T: __nv_bfloat16 or __half. D: upper limit of the head size (64, 128 or 256); head sizes are multiples of 8.
template <typename T, int D>
struct TensorCores {
  // Minimum number of blocks per multiprocessor, for __launch_bounds__.
  static constexpr int kBlocks = D == 256 ? 3 : 4;
  // Number of units (16 keys each) whose scores one iteration computes.
  static constexpr int kDepth = D == 256 ? 1 : 256 / D;
  static constexpr int kRingBytes = ring_bytes(D);
  static constexpr bool kWholeTiles = true;  // key_part can process several parts in one call
  // A stage of the ring buffer has kPad (16) rows of D elements, which are copied in chunks of 16 bytes.
  static constexpr int kChunks = D / 8, kCopies = kPad * kChunks / 32, kStage = kPad * D * 2,
                       kStages = kRingBytes / kStage;

  // Computes and stores the scores of keys [begin, begin + count). The range is one part, or several parts if the part
  // size is a multiple of kDepth units. For every row r, also writes the maximum and the sum of exponentials of each
  // part to part[r * p.max_parts] and the following entries.
  //
  // Keys are copied through the ring buffer, because whole rows are then requested together and more bytes are in
  // flight than with direct loads of fragments. In the matrix product, A is 16 keys by 16 dimensions and B contains the
  // query rows. If the tile has a single row, this row is repeated in all columns of B. Each of the four lanes with the
  // same g then has the scores of keys g and g + 8 of every unit, and the four lanes divide the remaining work on these
  // scores among them.
  template <PageAlignment PAGES>
  static __device__ void key_part(const Params& p, const RowTile& t, int begin, int count, char* memory, float2* part) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, units = (count + kPad - 1) / kPad;
    const uint64_t policy = read_once_policy();
    const KeyMemory m(p, memory, kRingBytes);
    Keys simple = simple_keys(p, t);
    simple.end = min(simple.end, begin + count);
    constexpr int kEach = PAGES == PageAlignment::units ? kPad : 1;  // number of keys that share one offset
    if constexpr (PAGES != PageAlignment::none) {
      bool bad = false;
      for (int n = lane; n < kPad / kEach * units; n += 32) {
        const int64_t at = kEach * n < count ? paged_offset(p, p.k, t.batch, begin + kEach * n) : kAbsent;
        m.offsets[n] = at;
        bad |= at == kBadPage;
      }
      if (__any_sync(~0u, bad)) simple.end = simple.begin;
    }
    if (lane < kRows) m.views[lane] = make_view(p, t, min(lane, t.rows - 1));
    __syncwarp();
    // The ring is swizzled: chunk number `chunk` of row r is stored at position chunk ^ r % 8, so that reads of eight
    // rows of a matrix use all banks. Each lane copies one chunk of every kRowsAtOnce-th row of a unit.
    constexpr int kRowsAtOnce = 32 / kChunks;
    const T* k = static_cast<const T*>(p.k.data) + t.kv_head * p.k.head + lane % kChunks * 8;
    const uint32_t ring = shared_address(m.ring);
    const bool inside = lane % kChunks * 8 < p.head_dim;
    if constexpr (PAGES == PageAlignment::none) k += plain_offset(p.k, t.batch, begin);
    if constexpr (PAGES != PageAlignment::keys) k += lane / kChunks * p.k.token;
    const int64_t step = kRowsAtOnce * p.k.token;
    auto issue_copy = [&](int unit) {
      // Number of keys from the lane's first key of the unit to the end of the range.
      int left = inside ? count - kPad * unit - lane / kChunks : 0;
      const T* from = k;
      if constexpr (PAGES == PageAlignment::none) from += kPad * unit * p.k.token;
      if constexpr (PAGES == PageAlignment::units) {
        const int64_t at = kPad * unit < count ? m.offsets[unit] : kAbsent;
        if (present(at)) {
          from += at;
        } else {
          left = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = kRowsAtOnce * i + lane / kChunks;
        bool there = left > kRowsAtOnce * i;
        const T* of_row = from + i * step;
        if constexpr (PAGES == PageAlignment::keys) {
          const int64_t at = there ? m.offsets[kPad * unit + row] : kAbsent;
          there = present(at);
          of_row = there ? k + at : k;
        }
        copy_once(ring + unit % kStages * kStage + row * D * 2 + (lane % kChunks ^ row % 8) * 16, of_row, there,
                  policy);
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) issue_copy(i);
    const bool single = p.rows == 1;
    // kHalves: number of half units (8 keys each) per iteration. kOwnKeys: number of scores per iteration that each
    // lane completes (bias, mask, exponential) if the tile has a single row.
    constexpr int kHalves = 2 * kDepth, kOwnKeys = std::max(kHalves / 4, 1);
    const bool owns = c * kOwnKeys < kHalves;
    const auto own_half = [c](int j) { return (c * kOwnKeys + j) % kHalves; };
    const auto own_key = [&](int j) { return 8 * own_half(j) + g; };  // index of the key within the iteration's keys
    uint32_t q[D / 16][2];
    load_row(p, t, single ? 0 : g, c, q);
    // Running maximum and sum of exponentials of rows 2 c and 2 c + 1 over the keys of this lane (lane 4 g + c).
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    float* kept = single ? score_at(p, t, 0, begin) : score_at(p, t, 2 * c, begin + g);
    const bool stored[2] = {2 * c < t.rows, 2 * c + 1 < t.rows};
    const auto keep = [&](int n, float x, float y) {
      float* const to = kept + n * p.score_key;
      if (stored[1] && p.score_row == 1) {
        *reinterpret_cast<float2*>(to) = {x, y};
      } else {
        if (stored[0]) to[0] = x;
        if (stored[1]) to[p.score_row] = y;
      }
    };
    for (int first = 0; first < units; first += kDepth) {
      const int key = begin + kPad * first;
      const bool plain = key >= simple.begin && key + kPad * kDepth <= simple.end;
      float bias[kOwnKeys] = {};  // if the tile has a single row, its biases are loaded before the products
      if (single && !plain) {
#pragma unroll
        for (int j = 0; j < kOwnKeys; ++j) bias[j] = score_bias(p, m.views[0], key + own_key(j));
      }
      float s[kDepth][4] = {};  // [unit][e]: key g (e < 2) or g + 8 of the unit; row 2 c (even e) or 2 c + 1 (odd e)
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        const int unit = first + i;
        wait_for_copies<kStages - 1>();
        __syncwarp();
        const uint32_t keys = ring + unit % kStages * kStage + lane % 16 * D * 2;
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          uint32_t a[4];
          load_matrices(a, keys + (2 * n + lane / 16 ^ lane % 8) * 16);
          mma<T>(s[i], a, q[n][0], q[n][1]);
        }
        __syncwarp();
        issue_copy(unit + kStages);  // the copies of units that do not exist write zeros, which are not read
      }
      if (p.softcap) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[i][e] = capped(p.softcap, s[i][e]);
        }
      }
      if (single) {
        float own[kOwnKeys], most = largest[0];
#pragma unroll
        for (int j = 0; j < kOwnKeys; ++j) {
          const int half = own_half(j), n = kPad * first + own_key(j);
          float x = s[0][0];
#pragma unroll
          for (int i = j; i < kHalves; i += kOwnKeys) x = i == half ? s[i / 2][i % 2 * 2] : x;
          if (plain) {
            x *= p.scale;
            if (owns) kept[n] = x;
          } else {
            const RowView row = m.views[0];
            x = finish_score(p, row, begin + n, x, bias[j]);
            if (PAGES != PageAlignment::none && n < count && m.offsets[n / kEach] == kBadPage) x = NAN;
            if (owns && n < count) kept[n] = x;
            if (n >= count || begin + n < row.begin || begin + n >= row.end) x = -INFINITY;
          }
          own[j] = owns ? x : -INFINITY;
          most = fmaxf(most, own[j]);
        }
        const float base = most == -INFINITY ? 0 : most;
        float more = sum[0] * __expf(largest[0] - base);
#pragma unroll
        for (int j = 0; j < kOwnKeys; ++j) more += __expf(own[j] - base);
        sum[0] = more;
        largest[0] = most;
      } else {
        if (plain) {
#pragma unroll
          for (int i = 0; i < kDepth; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) s[i][e] *= p.scale;
            keep(kPad * i, s[i][0], s[i][1]);
            keep(kPad * i + 8, s[i][2], s[i][3]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < kDepth; ++i) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const int n = kPad * (first + i) + 8 * h + g;
              const RowView rows[2] = {m.views[2 * c], m.views[2 * c + 1]};
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                float& x = s[i][2 * h + r];
                x = finish_score(p, rows[r], begin + n, x, score_bias(p, rows[r], begin + n));
                if (PAGES != PageAlignment::none && n < count && m.offsets[n / kEach] == kBadPage) x = NAN;
              }
              if (n < count) keep(kPad * i + 8 * h, s[i][2 * h], s[i][2 * h + 1]);
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                if (n >= count || begin + n < rows[r].begin || begin + n >= rows[r].end) s[i][2 * h + r] = -INFINITY;
              }
            }
          }
        }
        kept += kPad * kDepth * p.score_key;
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
      const int done = kPad * (first + kDepth);
      if (done < count && done & p.part - 1) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (single && r == 1) continue;
        float most = largest[r];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          if (single || step >= 4) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        }
        const float base = most == -INFINITY ? 0 : most;
        float all = sum[r] * __expf(largest[r] - base);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          if (single || step >= 4) all += __shfl_xor_sync(~0u, all, step);
        }
        if (g == 0 && stored[r]) part[static_cast<int64_t>(2 * c + r) * p.max_parts] = {most, all};
        largest[r] = -INFINITY;
        sum[r] = 0;
      }
      ++part;
    }
    wait_for_copies<0>();
  }

  // Loads the B fragments of row r: q[n][h] contains dimension 16 n + 8 h + 2 c and the next dimension. Dimensions
  // beyond the head size are zero, and so are rows that are not in the tile.
  static __device__ void load_row(const Params& p, const RowTile& t, int r, int c, uint32_t (&q)[D / 16][2]) {
    const T* row = static_cast<const T*>(p.q.data) + t.batch * p.q.batch;
    if (r < t.rows) row += t.query(p, r) * p.q.token + t.head(p, r) * p.q.head;
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int d = 16 * n + 8 * h + 2 * c;
        q[n][h] = 0;
        if (r >= t.rows || d >= p.head_dim) continue;
        if (p.q_aligned) {
          q[n][h] =
              __ldcg(reinterpret_cast<const uint32_t*>(row + d));  // from L2, because the previous kernel writes q
        } else {
          const auto* half = reinterpret_cast<const uint16_t*>(row);
          q[n][h] = half[d * p.q.dim] | static_cast<uint32_t>(half[(d + 1) * p.q.dim]) << 16;
        }
      }
    }
  }

  // Computes weighted sums of rows of V. In the matrix product, A is 16 dimensions by 16 keys, and B contains the
  // weights of the keys, split into high and low parts. With up to four rows, columns 0 to 3 of B contain the high
  // parts and columns 4 to 7 the low parts. With more rows, a second product adds the low parts.
  struct Sums {
    static constexpr int kStages = TensorCores::kStages, kCopiedStates = 4;
    float sum[D / 16][4] = {};  // [n][e]: dimension 16 n + g (e < 2) or 16 n + g + 8; row 2 c (e even) or 2 c + 1
    const T* v;
    uint64_t policy = read_once_policy();
    uint32_t ring;
    unsigned copied = 0;  // number of units (kPad list entries each) whose copy has been started
    bool inside, folded = false;

    __device__ Sums(const Params& p, const RowTile& t, char* memory)
        : v(static_cast<const T*>(p.v.data) + t.kv_head * p.v.head + threadIdx.x % kChunks * 8),
          ring(shared_address(memory)),
          inside(static_cast<int>(threadIdx.x % kChunks) * 8 < p.value_dim) {}

    // Starts the copies of the rows of V of all units (kPad list entries each) with an index below `units`. Before a
    // new copy overwrites a stage of the ring, the unit in this stage is accumulated. If `last` is true, accumulates
    // all remaining units.
    __device__ void advance(const Params&, const RowTile&, const AliveList& list, unsigned units, bool last) {
      folded = list.rows <= 4;
      for (const unsigned end = units + (last ? kStages : 0); copied < end; ++copied) {
        if (copied >= kStages) use(list, copied - kStages);
        if (copied < units) copy(list, copied);
        commit_copies();
      }
    }

    // Starts the copy of the kPad rows of V of a unit of the list. Chunk number `chunk` (16 bytes) of row r is stored
    // at position chunk ^ r % 8, so that reads of eight rows of a matrix use all banks.
    __device__ void copy(const AliveList& list, unsigned unit) {
      const int lane = threadIdx.x % 32, chunk = lane % kChunks;
      const int64_t* at = list.at + list.place(kPad * unit);
      const uint32_t stage = ring + unit % kStages * kStage;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int row = 32 / kChunks * i + lane / kChunks;
        const bool there = present(at[row]) && inside;
        copy_once(stage + row * D * 2 + (chunk ^ row % 8) * 16, there ? v + at[row] : v, there, policy);
      }
    }

    __device__ void use(const AliveList& list, unsigned unit) {
      const bool folded = list.rows <= 4;
      const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, row = folded ? g % 4 : g;
      float2 weight[2] = {};
      if (row < list.rows) {
        const float* from = list.weight + row * list.stride + list.place(kPad * unit) + 2 * c;
        weight[0] = *reinterpret_cast<const float2*>(from);
        weight[1] = *reinterpret_cast<const float2*>(from + 8);
      }
      uint32_t high[2], low[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        split<T>(weight[h].x, weight[h].y, high[h], low[h]);
        if (folded && g >= 4) high[h] = low[h];
      }
      wait_for_copies<kStages - 1>();
      __syncwarp();
      const int key = lane / 16 * 8 + lane % 8;
      const uint32_t keys = ring + unit % kStages * kStage + key * D * 2;
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t a[4];
        load_matrices_transposed(a, keys + (2 * n + lane / 8 % 2 ^ key % 8) * 16);
        mma<T>(sum[n], a, high[0], high[1]);
        if (!folded) mma<T>(sum[n], a, low[0], low[1]);
      }
      __syncwarp();
    }

    // Stores element d of the sum of row r at to[r * value_dim + d]. All lanes must call this function.
    __device__ void store(const Params& p, const RowTile& t, float* to) const {
      const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e % 2 && t.rows == 1) continue;
          const int d = 16 * n + g + e / 2 * 8, r = 2 * c + e % 2;
          // If one product computed the sums of the high and the low parts (`folded`), the sum of the low parts is in
          // column r + 4, which belongs to another lane.
          const float lower = __shfl_xor_sync(~0u, sum[n][e], 2);
          if (r < t.rows && d < p.value_dim) to[r * p.value_dim + d] = folded ? sum[n][e] + lower : sum[n][e];
        }
      }
    }
  };
};

}  // namespace lazy::kernels::cuda::decoding
