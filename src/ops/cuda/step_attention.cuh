// Attention of one token in a decode step. This code runs in the worker warps of fused_decode_layers.cu, and its
// results are bitwise equal to the results of the decode kernels. The keys of a head are divided into pieces of kPiece
// keys, which are distributed over the blocks. Each piece consists of two parts of kPart keys; one warp computes the
// scores of a part. When all parts of a head are complete, some warps compute the weighted value sums of a piece; each
// of these warps computes at least 16 dimensions. Finally, other warps add the sums of all pieces.
#pragma once
#include "attention/cuda/decode_normalizers.cuh"
#include "ops/cuda/step_worker.cuh"

namespace lazy::ops::cuda::step {

template <typename T, int D>
struct Attention {
  using Scores = decoding::TensorCores<T, D>;
  static constexpr int kUnitsOfPart = kPart / kUnitKeys;
  // Size in bytes of a stage of the ring buffer for keys, and the number of stages.
  static constexpr int kStageBytes = kUnitKeys * D * 2, kStages = Scores::kRingBytes / kStageBytes;
  // Number of 16-byte pieces per row, and number of rows that a warp copies with one instruction.
  static constexpr int kPiecesOfRow = D / 8, kRowsAtOnce = 32 / kPiecesOfRow;
  // Number of 32-bit words per head, and number of these words per lane.
  static constexpr int kWords = D / 2, kOwnWords = kWords / 32;
  static_assert(kStages <= kUnitsOfPart && kUnitsOfPart == 4 && Scores::kDepth >= 2 && Scores::kDepth <= 4);

  const Worker<T, D>& w;
  decoding::Params p;
  decoding::Sequence sequence;
  kernels::cuda::Keys seen;   // range of keys that the token attends to
  int all_pieces, all_parts;  // number of pieces and of parts per head
  int first, count;           // the block processes the pieces [first, first + count), counted over all heads
  uint64_t policy = decoding::read_once_policy();

  __device__ Attention(const Worker<T, D>& worker) : w(worker), p(worker.s.attention) {
    p.batch = p.q_length = p.group = p.rows = p.tiles = 1;
    p.causal = true;
    p.visible_counts = nullptr;
    p.dtype = DType::bf16;
    p.lengths = &w.shared.length;
    sequence = decoding::read_sequence(p, 0);
    seen = decoding::visible(p, sequence.length, 0);
    const int keys = sequence.end - sequence.first;
    all_pieces = max((keys + kPiece - 1) / kPiece, 1);
    all_parts = (keys + kPart - 1) / kPart;
    const int64_t total = int64_t{p.heads} * all_pieces;
    first = static_cast<int>(blockIdx.x * total / gridDim.x);
    count = static_cast<int>((blockIdx.x + 1) * total / gridDim.x) - first;
    for (int n = w.warp; n < min(count, kPieces); n += kWorkers) find(n, w.shared.pieces[n]);
    worker_barrier();
  }

  __device__ void set_layer(const FusedDecodeLayer& l) {
    p.tau = l.tau;
    p.sink = l.sink;
  }

  __device__ bool scores_are_kept() const { return count * kPiece <= kScores; }

  // Starts the copies of the first keys of the block's n-th part. For the first part of each warp, this happens before
  // the layer starts.
  __device__ void begin_part(const FusedDecodeLayer& l, int n) const {
    if (n >= 2 * count) return;
    const KeyPiece& piece = piece_of(n / 2);
    if (sequence.first + (piece.number * 2 + n % 2) * kPart >= sequence.end) return;
#pragma unroll
    for (int unit = 0; unit < kStages; ++unit) copy_keys(l, piece, n % 2, unit);
  }

  // Computes the largest score and the sum of exponentials of each part that belongs to this block, and sends them to
  // all blocks. The scores are stored for sum_values, in shared memory if there are at most kScores, otherwise in
  // global memory.
  __device__ void score(const FusedDecodeLayer& l, uint32_t flag) const {
#pragma unroll 1
    for (int n = w.warp; n < 2 * count; n += kWorkers) {
      if (n != w.warp) begin_part(l, n);
      score_part(l, flag, n);
    }
  }

  // Computes the weighted value sums of the pieces that belong to this block, and sends them to all blocks. The work is
  // divided among as many warps as possible.
  __device__ void sum_values(const FusedDecodeLayer& l, uint32_t flag) const {
    constexpr int kGroups = D / 16;  // number of groups of 16 dimensions; each warp sums some groups of a piece
    if (count * kGroups / 4 > kWorkers / 2) return sum_pieces<4>(l, flag);
    if (count * kGroups / 2 > kWorkers / 2) return sum_pieces<2>(l, flag);
    sum_pieces<1>(l, flag);
  }

  // Computes the attention outputs of all heads by adding the sums of the pieces. A warp processes four words (eight
  // dimensions) of a head; each group of its lanes adds some of the pieces.
  __device__ void add_pieces(uint32_t flag) const {
    constexpr int kGroups = decoding::kSumThreads / D, kSpan = decoding::kWarps;
    const int spans = max((all_pieces + kSpan - 1) / kSpan, 1), pieces = sequence.end > sequence.first ? all_pieces : 0;
    const int group = w.lane / 4, blocks = gridDim.x;
#pragma unroll 1
    for (int quad = blockIdx.x + (kWorkers - 1 - w.warp) * blocks; quad < p.heads * D / 8; quad += kWorkers * blocks) {
      const int head = quad * 8 / D, d = quad * 8 % D + 2 * w.c;
      const Word* const sums = w.s.sums + int64_t{head} * w.s.max_pieces * D + d;
      float2 of_group{};
      if (group < kGroups) {
#pragma unroll 1
        for (int span = group; span < spans; span += kGroups) {
          const Word* from[kSpan];
          Word got[kSpan][2];
#pragma unroll
          for (int i = 0; i < kSpan; ++i) {
            const int n = span * kSpan + i;
            from[i] = n < pieces ? sums + int64_t{n} * D : nullptr;
          }
          wait_for_words<2>(from, flag, got);
          float2 sum{};
#pragma unroll
          for (int i = 0; i < kSpan; ++i) sum = {sum.x + number(got[i][0]), sum.y + number(got[i][1])};
          of_group = {of_group.x + sum.x, of_group.y + sum.y};
        }
      }
      __syncwarp();
      float2 all{};
#pragma unroll 1
      for (int i = 0; i < min(kGroups, spans); ++i) {
        all.x += __shfl_sync(~0u, of_group.x, i * 4 + w.c);
        all.y += __shfl_sync(~0u, of_group.y, i * 4 + w.c);
      }
      if (sequence.length < 0) all = {NAN, NAN};
      if (group == 0) put_word(w.s.attended + quad * 4 + w.c, flagged(kernels::cuda::pack<T>(all.x, all.y), flag));
    }
  }

 private:
  __device__ void find(int n, KeyPiece& to) const {
    const int head = (first + n) / all_pieces, number = first + n - head * all_pieces;
    const int key = sequence.first + number * kPiece + w.lane * kUnitKeys;
    if (w.lane == 0) to.head = head, to.number = number;
    if (w.lane < kPiece / kUnitKeys) {
      to.at[w.lane] = key < sequence.end ? decoding::paged_offset(p, p.k, 0, key) : decoding::kAbsent;
    }
    __syncwarp();
  }
  __device__ const KeyPiece& piece_of(int n) const {
    if (n < kPieces) return w.shared.pieces[n];
    __syncwarp();
    find(n, w.shared.other[w.warp]);
    return w.shared.other[w.warp];
  }
  __device__ float* scores_of(const KeyPiece& piece, int n) const {
    return scores_are_kept() ? w.shared.scores + n * kPiece
                             : p.scores + int64_t{piece.head} * p.columns + piece.number * kPiece;
  }

  // Copies a unit of keys to the ring buffer of the worker warp, except for the key of the new token. The 16 bytes with
  // index i of row r are stored at index i ^ r % 8, so that eight rows are in different banks.
  __device__ void copy_keys(const FusedDecodeLayer& l, const KeyPiece& piece, int half, int unit) const {
    const int row = w.lane / kPiecesOfRow, i = w.lane % kPiecesOfRow;
    const int key = sequence.first + piece.number * kPiece + half * kPart + unit * kUnitKeys + row;
    const int64_t at = piece.at[half * kUnitsOfPart + unit];
    const int left = decoding::present(at) ? sequence.length - 1 - key : 0;
    const T* from = static_cast<const T*>(l.keys) + piece.head * p.k.head + i * 8 + row * p.k.token;
    if (left > 0) from += at;
    const uint32_t stage = kernels::cuda::shared_address(w.own) + unit % kStages * kStageBytes;
#pragma unroll
    for (int n = 0; n < kUnitKeys / kRowsAtOnce; ++n) {
      const int r = row + n * kRowsAtOnce;
      decoding::copy_once(stage + r * D * 2 + (i ^ r % 8) * 16, from + n * kRowsAtOnce * p.k.token,
                          left > n * kRowsAtOnce, policy);
    }
    decoding::commit_copies();
  }

  // Returns the i-th of the two keys of a part whose scores this lane finishes. The order depends on the number of
  // units that the decode kernels process together (kDepth), so that the sums are bitwise equal.
  __device__ int lanes_key(int i) const {
    return Scores::kDepth == kUnitsOfPart ? 16 * w.c + 8 * i + w.g : 32 * i + 8 * w.c + w.g;
  }

  __device__ void score_part(const FusedDecodeLayer& l, uint32_t flag, int n) const {
    const KeyPiece& piece = piece_of(n / 2);
    const int half = n % 2, head = piece.head, index = piece.number * 2 + half;
    const int begin = sequence.first + index * kPart, keys = min(sequence.end - begin, kPart);
    if (keys <= 0) return;
    // Index of the new token's key within the part; out of range if the part does not contain it.
    const int own_key = sequence.length - 1 - begin;
    const bool here = own_key >= 0 && own_key < keys;
    float bias[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int far = abs(own_key - lanes_key(i));
      bias[i] = far < p.bias_window ? __ldg(l.distance_bias + int64_t{head} * p.bias_window + far) : 0;
    }
    // Receive q of the head, and the key and value of the new token. The key and the value are also written to their
    // page.
    uint32_t q[D / 16][2], own_key_words[kOwnWords];
    {
      const Word* from[3 * kOwnWords];
      Word got[3 * kOwnWords][1];
#pragma unroll
      for (int i = 0; i < 3 * kOwnWords; ++i) {
        const int of = i / kOwnWords;  // 0: q, 1: k, 2: v
        const Word* const word = w.s.heads + (of * p.heads + head) * kWords + i % kOwnWords * 32 + w.lane;
        from[i] = of == 0 || here ? word : nullptr;
      }
      wait_for_words<1>(from, flag, got);
#pragma unroll
      for (int i = 0; i < D / 8; ++i) q[i / 2][i % 2] = __shfl_sync(~0u, data(got[i / 8][0]), i % 8 * 4 + w.c);
#pragma unroll
      for (int i = 0; i < kOwnWords; ++i) {
        own_key_words[i] = data(got[kOwnWords + i][0]);
        const int64_t to = (w.shared.slot * p.heads + head) * kWords + i * 32 + w.lane;
        if (here) {
          static_cast<uint32_t*>(l.keys)[to] = own_key_words[i];
          static_cast<uint32_t*>(l.values)[to] = data(got[2 * kOwnWords + i][0]);
        }
      }
    }
    float x[2] = {};
    bool bad = false;
#pragma unroll
    for (int unit = 0; unit < kUnitsOfPart; ++unit) {
      bad |= piece.at[half * kUnitsOfPart + unit] == decoding::kBadPage;
      decoding::wait_for_copies<kStages - 1>();
      __syncwarp();
      char* const stage = w.own + unit % kStages * kStageBytes;
      // The new key is taken from the registers, because its write to the page may not be visible yet.
      if (here && own_key / kUnitKeys == unit) {
        const int row = own_key % kUnitKeys;
#pragma unroll
        for (int i = 0; i < kOwnWords; ++i) {
          const int word = i * 32 + w.lane;
          *reinterpret_cast<uint32_t*>(stage + row * D * 2 + (word / 4 ^ row % 8) * 16 + word % 4 * 4) =
              own_key_words[i];
        }
        __syncwarp();
      }
      float dot[4] = {};
      const uint32_t rows = kernels::cuda::shared_address(stage) + w.lane % 16 * D * 2;
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        uint32_t a[4];
        kernels::cuda::load_matrices(a, rows + (2 * i + w.lane / 16 ^ w.lane % 8) * 16);
        kernels::cuda::mma<T>(dot, a, q[i][0], q[i][1]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int half = lanes_key(i) / 8 - 2 * unit;
        if (half == 0) x[i] = dot[0];
        if (half == 1) x[i] = dot[2];
      }
      if (unit + kStages < kUnitsOfPart) {
        __syncwarp();
        copy_keys(l, piece, half, unit + kStages);
      } else {
        decoding::commit_copies();
      }
    }
    if (p.softcap) {
#pragma unroll
      for (int i = 0; i < 2; ++i) x[i] = kernels::cuda::capped(p.softcap, x[i]);
    }
    float* const kept = scores_of(piece, n / 2) + half * kPart;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = lanes_key(i);
      x[i] = p.scale * x[i] + bias[i];
      if (l.alibi_slopes) x[i] -= l.alibi_slopes[head] * static_cast<float>(abs(own_key - at));
      if (bad) x[i] = NAN;
      if (at < keys) kept[at] = x[i];
      if (at >= keys || begin + at < seen.begin || begin + at >= seen.end) x[i] = -INFINITY;
      most = fmaxf(most, x[i]);
    }
    const auto base = [](float largest) { return largest == -INFINITY ? 0 : largest; };
    float all = __expf(x[0] - base(most)) + __expf(x[1] - base(most)), largest = most;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    all *= __expf(most - base(largest));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) all += __shfl_xor_sync(~0u, all, step);
    if (w.lane == 0) {
      put_words(w.s.parts + (int64_t{head} * p.max_parts + index) * 2, flagged(largest, flag), flagged(all, flag));
    }
    __syncwarp();
  }

  // Returns the softmax state of a head, merged from the statistics that all blocks have sent for the parts of its
  // keys.
  __device__ decoding::RowState state_of(uint32_t flag, int head) const {
    decoding::RowTile t{};
    t.kv_head = head;
    t.rows = 1;
    t.sequence = sequence;
    decoding::RowState state = decoding::make_state(p, t, 0);
    const Word* const parts = w.s.parts + int64_t{head} * p.max_parts * 2;
    float2 all = decoding::merge_loaded_parts(
        [&](int n, float2(&x)[decoding::kPartsAtOnce]) {
          const Word* from[decoding::kPartsAtOnce];
          Word got[decoding::kPartsAtOnce][2];
#pragma unroll
          for (int i = 0; i < decoding::kPartsAtOnce; ++i) {
            from[i] = n + 32 * i < all_parts ? parts + (n + 32 * i) * 2 : nullptr;
          }
          wait_for_words<2>(from, flag, got);
#pragma unroll
          for (int i = 0; i < decoding::kPartsAtOnce; ++i) {
            x[i] = from[i] ? float2{number(got[i][0]), number(got[i][1])} : float2{-INFINITY, 0};
          }
        },
        all_parts, w.lane, 32);
    all = decoding::warp_merge(all);
    float lse;
    return decoding::finish_state(p, t, 0, state, all, lse);
  }

  template <int GROUPS>
  __device__ void sum_pieces(const FusedDecodeLayer& l, uint32_t flag) const {
    constexpr int kWarps = D / 16 / GROUPS;  // number of warps that sum the values of a piece
    static_assert(kWarps <= kWorkers);
    const int group = w.warp % kWarps * GROUPS;
#pragma unroll 1
    for (int n = w.warp / kWarps; n < count; n += kWorkers / kWarps) {
      const KeyPiece& piece = piece_of(n);
      const int begin = sequence.first + piece.number * kPiece, keys = min(sequence.end - begin, kPiece);
      const float* const kept = scores_of(piece, n);
      float weight[kPiece / 32];  // contains the scores first, and later the softmax weights
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) weight[i] = 32 * i + w.lane < keys ? kept[32 * i + w.lane] : -INFINITY;
      const decoding::RowState state = state_of(flag, piece.head);
      // List of the value rows of the keys with nonzero weight, in order of the keys, padded with absent rows to a
      // whole unit.
      auto* const list_at = reinterpret_cast<int64_t*>(w.own + Scores::kRingBytes);
      auto* const list_weight = reinterpret_cast<float*>(list_at + Worker<T, D>::kListed);
      int listed = 0;
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) {
        const int at = 32 * i + w.lane, key = begin + at;
        const bool there = at < keys && key >= seen.begin && key < seen.end;
        weight[i] = there ? decoding::softmax_weight(state, weight[i]).weight : 0;
        const bool needed = !(weight[i] == 0);
        const unsigned mask = __ballot_sync(~0u, needed);
        if (needed) {
          const int place = listed + __popc(mask & ((1u << w.lane) - 1));
          const int64_t unit = piece.at[at / kUnitKeys];
          list_at[place] = decoding::present(unit) ? unit + at % kUnitKeys * p.v.token : decoding::kAbsent;
          list_weight[place] = weight[i];
        }
        listed += __popc(mask);
      }
      if (w.lane < kUnitKeys) list_at[listed + w.lane] = decoding::kAbsent, list_weight[listed + w.lane] = 0;
      __syncwarp();
      float sum[GROUPS][4] = {};
      sum_listed<GROUPS>(l, piece.head, group, list_at, list_weight, (listed + kUnitKeys - 1) / kUnitKeys, sum);
      Word* const to = w.s.sums + (int64_t{piece.head} * w.s.max_pieces + piece.number) * D + group * 16 + w.g;
#pragma unroll
      for (int i = 0; i < GROUPS; ++i) {
#pragma unroll
        // Add the sums with the high parts of the weights (column 0) and with the low parts (column 4).
        for (int h = 0; h < 2; ++h) {
          const float x = sum[i][2 * h] + __shfl_xor_sync(~0u, sum[i][2 * h], 2);
          if (w.c == 0) put_word(to + 16 * i + 8 * h, flagged(x, flag));
        }
      }
      __syncwarp();
    }
  }

  // Sums the listed rows of V. They are copied through the ring buffer of the worker warp, one unit of the list at a
  // time. Each weight is split into a high and a low 16-bit part. Column 0 of operand B of the mma instruction contains
  // the high parts, and column 4 contains the low parts.
  template <int GROUPS>
  __device__ void sum_listed(const FusedDecodeLayer& l, int head, int group, const int64_t* list_at,
                             const float* list_weight, int units, float (&sum)[GROUPS][4]) const {
    constexpr int kRowBytes = GROUPS * 32, kBytes = kUnitKeys * kRowBytes, kStages = Scores::kRingBytes / kBytes;
    constexpr int kPiecesOfRow = 2 * GROUPS, kSwizzle = kPiecesOfRow < 8 ? 8 / kPiecesOfRow : 1;
    // Address of 16-byte piece i of a row, swizzled so that eight rows are in different banks.
    const auto place = [](int row, int i) { return row * kRowBytes + (i ^ row / kSwizzle % kPiecesOfRow % 8) * 16; };
    const uint32_t ring = kernels::cuda::shared_address(w.own);
    const T* const v = static_cast<const T*>(l.values) + head * p.v.head + group * 16;
    const auto copy = [&](int unit) {
      if (unit < units) {
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
          const int at = n * 32 + w.lane, row = at / kPiecesOfRow, i = at % kPiecesOfRow;
          const int64_t from = list_at[unit * kUnitKeys + row];
          const bool present = decoding::present(from);
          decoding::copy_once(ring + unit % kStages * kBytes + place(row, i), present ? v + from + i * 8 : v, present,
                              policy);
        }
      }
      decoding::commit_copies();
    };
    constexpr int kMaxUnits = kPiece / kUnitKeys, kAhead = kStages < kMaxUnits ? kStages : kMaxUnits;
#pragma unroll 1
    for (int unit = 0; unit < kAhead; ++unit) copy(unit);
    const int key = w.lane / 16 * 8 + w.lane % 8;
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      uint32_t high[2], low[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2 pair = *reinterpret_cast<const float2*>(list_weight + unit * kUnitKeys + 8 * h + 2 * w.c);
        if (w.g % 4 != 0) pair = {0, 0};
        decoding::split<T>(pair.x, pair.y, high[h], low[h]);
        if (w.g >= 4) high[h] = low[h];
      }
      decoding::wait_for_copies<kAhead - 1>();
      __syncwarp();
      const uint32_t stage = ring + unit % kStages * kBytes;
#pragma unroll
      for (int n = 0; n < GROUPS; ++n) {
        uint32_t a[4];
        kernels::cuda::load_matrices_transposed(a, stage + place(key, 2 * n + w.lane / 8 % 2));
        kernels::cuda::mma<T>(sum[n], a, high[0], high[1]);
      }
      __syncwarp();
      copy(unit + kAhead);
    }
  }
};

}  // namespace lazy::ops::cuda::step
