// Computes weighted sums of the rows of V from only the keys with nonzero weight ("alive" keys). Rows of weights are
// processed in pairs: the keys that have a nonzero weight in at least one of the two rows are collected in a short list
// that stays in L1, so that each row of V is read once for two rows of weights.
#if defined(LAZY_ATTENTION_CPU_ALIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_ALIVE_INL_H_
#undef LAZY_ATTENTION_CPU_ALIVE_INL_H_
#else
#define LAZY_ATTENTION_CPU_ALIVE_INL_H_
#endif

#include "attention/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

// If the fraction of nonzero weights is below this value, alive_times_rows() (which lists the nonzero weights) is
// faster than times_rows() (which processes all weights).
constexpr double kDenseShare = 0.55;

struct AliveList {
  HWY_ALIGN float weight[2][kDepth + kLanes];
  HWY_ALIGN uint32_t offset[kDepth + kLanes];  // offsets of the keys' rows of V from the row of key 0, in floats
  size_t count;
};

// Lookup table for compressing vectors of kN lanes: lanes[mask] contains, in ascending order, the indices of the lanes
// whose bit in `mask` is set.
template <size_t kN>
struct SetLanes {
  constexpr SetLanes() {
    for (size_t mask = 0; mask < size_t{1} << kN; ++mask) {
      for (size_t lane = 0, count = 0; lane < kN; ++lane) {
        if (mask >> lane & 1) lanes[mask][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
  uint8_t lanes[size_t{1} << kN][kN] = {};
};
inline constexpr SetLanes<kLanes == 8 ? 8 : 1> kSetLanes;

// Moves the lanes that a mask selects to the front of a vector (compress). The function Compress of Highway 1.0 is not
// used with AVX2, because GCC 12 copies its table to the stack at every call, which took two thirds of the time of the
// weighted sum. An object of this class loads the table entry of its mask once and then compresses several vectors.
class ToTheFront {
 public:
  explicit ToTheFront(hn::Mask<F> mask) : mask_(mask) {
    if constexpr (kLanes == 8) {
      uint8_t bits[8];
      hn::StoreMaskBits(F(), mask, bits);
      const hn::RebindToSigned<F> i32;
      lanes_ = hn::PromoteTo(i32, hn::LoadU(hn::Rebind<uint8_t, decltype(i32)>(), kSetLanes.lanes[bits[0]]));
    }
  }
  HWY_INLINE VF operator()(VF v) const {
    if constexpr (kLanes == 8) return hn::TableLookupLanes(v, hn::IndicesFromVec(F(), lanes_));
    return hn::Compress(v, mask_);
  }

 private:
  hn::Mask<F> mask_;
  hn::Vec<hn::RebindToSigned<F>> lanes_;
};

// Lists the keys of [0, n) that have a nonzero weight in at least one of the two rows of weights `first` and `second`.
// n must not exceed kDepth. width: distance between two rows of V in floats. The function reads whole vectors of
// weights, also beyond n.
HWY_INLINE void list_alive(const float* HWY_RESTRICT first, const float* HWY_RESTRICT second, size_t n, size_t width,
                           AliveList& list) {
  const F f;
  const hn::RebindToUnsigned<F> u32;
  auto offset = hn::Mul(hn::Iota(u32, 0), hn::Set(u32, static_cast<uint32_t>(width)));
  const auto step = hn::Set(u32, static_cast<uint32_t>(width * kLanes));
  size_t count = 0;
  for (size_t j = 0; j < n; j += kLanes) {
    const VF a = hn::LoadU(f, first + j), b = hn::LoadU(f, second + j);
    const auto alive = hn::Not(hn::And(hn::Eq(a, hn::Zero(f)), hn::Eq(b, hn::Zero(f))));  // NaN is treated as nonzero
    const ToTheFront front(alive);
    hn::StoreU(front(a), f, list.weight[0] + count);
    hn::StoreU(front(b), f, list.weight[1] + count);
    hn::StoreU(hn::BitCast(u32, front(hn::BitCast(f, offset))), u32, list.offset + count);
    offset = hn::Add(offset, step);
    count += hn::CountTrue(f, alive);
  }
  list.count = count;
}

// kGathered: number of vectors of a row of V that one iteration processes. kSums: number of independent partial sums
// per element of the output. The vector registers limit kSums, because two rows of weights need 2 * kSums * kGathered
// accumulators: 16 with AVX-512 and 8 with AVX2.
constexpr size_t kGathered = 4;
constexpr int kSums = kLanes >= 16 ? 2 : 1;

// Computes out[r] += sum_n weight[r][n] keys[offset[n]] over the entries n of the list, for kR rows of weights and kV
// vectors of each row of V.
template <int kR, int kV>
HWY_INLINE void gather(const AliveList& list, const float* HWY_RESTRICT keys, float* HWY_RESTRICT out, size_t out_row) {
  const F f;
  VF sum[kSums][kR][kV];
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) {
      sum[0][r][v] = hn::LoadU(f, out + r * out_row + v * kLanes);
      if constexpr (kSums == 2) sum[1][r][v] = hn::Zero(f);
    }
  }
  size_t n = 0;
  for (; n + kSums <= list.count; n += kSums) {
    HWY_UNROLL(2)
    for (int u = 0; u < kSums; ++u) {
      const float* HWY_RESTRICT row = keys + list.offset[n + u];
      VF value[kV];
      HWY_UNROLL(4)
      for (int v = 0; v < kV; ++v) value[v] = hn::LoadU(f, row + v * kLanes);
      HWY_UNROLL(2)
      for (int r = 0; r < kR; ++r) {
        const VF weight = hn::Set(f, list.weight[r][n + u]);
        HWY_UNROLL(4)
        for (int v = 0; v < kV; ++v) sum[u][r][v] = hn::MulAdd(weight, value[v], sum[u][r][v]);
      }
    }
  }
  if (n < list.count) {
    const float* HWY_RESTRICT row = keys + list.offset[n];
    HWY_UNROLL(2)
    for (int r = 0; r < kR; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < kV; ++v) {
        sum[0][r][v] = hn::MulAdd(hn::Set(f, list.weight[r][n]), hn::LoadU(f, row + v * kLanes), sum[0][r][v]);
      }
    }
  }
  HWY_UNROLL(2)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) {
      const VF all = kSums == 2 ? hn::Add(sum[0][r][v], sum[kSums - 1][r][v]) : sum[0][r][v];
      hn::StoreU(all, f, out + r * out_row + v * kLanes);
    }
  }
}

template <int kR>
HWY_INLINE void gather_any(size_t vectors, const AliveList& list, const float* keys, float* out, size_t out_row) {
  switch (vectors) {
    case 4:
      return gather<kR, 4>(list, keys, out, out_row);
    case 3:
      return gather<kR, 3>(list, keys, out, out_row);
    case 2:
      return gather<kR, 2>(list, keys, out, out_row);
    case 1:
      return gather<kR, 1>(list, keys, out, out_row);
  }
}

// Computes the same product as times_rows (products-inl.h), but from lists of the columns with nonzero weight, and only
// for the groups of kRows rows for which alive[group] is set.
inline HWY_NOINLINE void alive_times_rows(const Problem& p, const RowBlock& block, const float* strip, size_t strip_row,
                                          const bool* alive, const float* keys, size_t all_keys, size_t stride,
                                          float* out) {
  const size_t columns = block.keys_end - block.keys_begin;
  // Number of keys per list. For head sizes up to 128, their rows of V then take at most 32 KiB.
  const size_t depth = stride > 64 ? kDepth / 2 : kDepth;
  AliveList list;
  for (size_t c = 0; c < columns; c += depth) {
    for (size_t r = 0; r < static_cast<size_t>(block.rows); r += 2) {
      if (!alive[r / kRows]) continue;
      const size_t rows = std::min<size_t>(2, block.rows - r);
      const KeyRange range = group_range(p, block, r, rows);
      const size_t begin = std::max<size_t>(c, range.begin / kLanes * kLanes);
      const size_t end = std::min<size_t>(c + depth, range.end);
      if (begin >= end) continue;
      const float* weights = strip + r * strip_row + begin;
      const size_t last = std::min(kSlice, stride);
      list_alive(weights, weights + (rows - 1) * strip_row, end - begin, last, list);
      for (size_t d = 0; d < stride; d += kGathered * kLanes) {
        const size_t slice = d / kSlice * kSlice, width = std::min(kSlice, stride - slice);
        const float* from = keys + slice * all_keys + (block.keys_begin + begin) * width + (d - slice);
        if (width != last && d == slice) {
          for (size_t n = 0; n < list.count; ++n) list.offset[n] = list.offset[n] / last * width;
        }
        const size_t vectors = std::min(kGathered * kLanes, stride - d) / kLanes;
        if (rows == 2) {
          gather_any<2>(vectors, list, from, out + r * stride + d, stride);
        } else {
          gather_any<1>(vectors, list, from, out + r * stride + d, stride);
        }
      }
    }
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
