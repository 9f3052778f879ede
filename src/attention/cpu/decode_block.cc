// Vector code of decode: it computes scores directly from the rows of the KV cache, and weighted sums of the rows of V
// whose weight is not zero.
#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/decode_block.cc"
#include "hwy/foreach_target.h"
// These headers must be included after foreach_target.h.
#include <cstdlib>

#include "attention/cpu/alive-inl.h"
#include "attention/cpu/block.h"
#include "attention/cpu/convert-inl.h"
#include "attention/cpu/normalizers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

constexpr int64_t kBlock = 64;  // keys per block; their addresses and the lists of keys with nonzero weight stay in L1
constexpr size_t kMaxDims = 256;

// Functions that load elements of a cache as fp32: vector() loads one vector and pair() loads two. For bf16, pair()
// returns the even and the odd elements in separate vectors, because a shift and a mask extract them from 32-bit words.
// The elements of the queries are stored in the same order as the elements that pair() returns.
struct LoadF32 {
  using T = float;
  static HWY_INLINE VF vector(const T* from) { return hn::LoadU(F(), from); }
  static HWY_INLINE void pair(const T* from, VF& first, VF& second) {
    first = vector(from);
    second = vector(from + kLanes);
  }
};
struct LoadBF16 {
  using T = uint16_t;
  static HWY_INLINE VF vector(const T* from) {
    const hn::RebindToUnsigned<F> u32;
    const hn::Rebind<uint16_t, F> u16;
    return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, from))));
  }
  static HWY_INLINE void pair(const T* from, VF& even, VF& odd) {
#if HWY_TARGET == HWY_SCALAR
    even = vector(from);
    odd = vector(from + 1);
#else
    const hn::RebindToUnsigned<F> u32;
    const auto words = hn::BitCast(u32, hn::LoadU(hn::Repartition<uint16_t, F>(), from));
    even = hn::BitCast(F(), hn::ShiftLeft<16>(words));
    odd = hn::BitCast(F(), hn::And(words, hn::Set(u32, 0xFFFF0000u)));
#endif
  }
};
struct LoadF16 {
  using T = hwy::float16_t;
  static HWY_INLINE VF vector(const T* from) {
    return hn::PromoteTo(F(), hn::LoadU(hn::Rebind<hwy::float16_t, F>(), from));
  }
  static HWY_INLINE void pair(const T* from, VF& first, VF& second) {
    first = vector(from);
    second = vector(from + kLanes);
  }
};

size_t element_size(DType type) { return type == DType::f32 ? 4 : 2; }

// Calls function(Load()) for the element type of the cache.
template <typename Function>
HWY_INLINE void with_type(DType type, const Function& function) {
  switch (type) {
    case DType::bf16:
      return function(LoadBF16());
    case DType::f16:
      return function(LoadF16());
    case DType::f32:
      return function(LoadF32());
    case DType::f64:
      break;  // not reached: unmet_condition rejects f64
  }
  std::abort();
}

// Computes the addresses of the keys [begin, begin + count) in a cache. The caller adds the offset of the head.
HWY_INLINE void key_addresses(const Decode<float>& a, const ConstView& cache, DType type, int64_t b, int64_t begin,
                              int64_t count, const uint8_t** to) {
  const auto* data = static_cast<const uint8_t*>(cache.data);
  const auto size = static_cast<int64_t>(element_size(type));
  for (int64_t n = 0; n < count; ++n) {
    const int64_t j = begin + n;
    const int64_t offset =
        a.block_table ? a.block_table[b * a.table_width + j / a.page_size] * cache.batch + j % a.page_size * cache.token
                      : b * cache.batch + j * cache.token;
    to[n] = data + offset * size;
  }
}

struct KvHeads {
  int64_t begin, end;
};

// Calls function for all heads together if the heads of a token are adjacent in memory, otherwise for each head
// separately. The loop over keys in the function then reads contiguous memory.
template <typename Function>
HWY_INLINE void in_memory_order(const Problem& p, const ConstView& cache, const Function& function) {
  const int64_t step = cache.head < cache.token ? p.kv_heads : 1;
  for (int64_t h = 0; h < p.kv_heads; h += step) function(KvHeads{h, h + step});
}

// Whether rows can be read directly from the cache as whole vectors.
bool whole_vectors(const ConstView& cache, int64_t dim) {
  return cache.dim == 1 && dim % static_cast<int64_t>(kLanes) == 0;
}

// Copies a row to fp32 and pads it with zeros to whole vectors.
const float* copy_row(DType type, const uint8_t* from, int64_t stride, size_t dim, float* to) {
  load_row(type, from, 0, stride, dim, 1.0f, to);
  std::fill(to + dim, to + round_up(dim, kLanes), 0.0f);
  return to;
}

// Computes the dot product of a key and a query as one partial sum per vector lane; the caller must add the lanes.
// kPairs: number of pairs of vectors in `dims` dimensions, or -1 if it is not known at compile time.
template <typename Load, int kPairs>
HWY_INLINE VF lane_products(const typename Load::T* HWY_RESTRICT key, const float* HWY_RESTRICT q, size_t dims) {
  const F f;
  VF sum0 = hn::Zero(f), sum1 = hn::Zero(f), k0, k1;
  const size_t pairs = kPairs < 0 ? dims / (2 * kLanes) : kPairs;
  for (size_t n = 0; n < pairs; ++n) {
    Load::pair(key + 2 * n * kLanes, k0, k1);
    sum0 = hn::MulAdd(k0, hn::LoadU(f, q + 2 * n * kLanes), sum0);
    sum1 = hn::MulAdd(k1, hn::LoadU(f, q + (2 * n + 1) * kLanes), sum1);
  }
  if (kPairs < 0 && dims % (2 * kLanes) != 0) {
    sum0 = hn::MulAdd(Load::vector(key + 2 * pairs * kLanes), hn::LoadU(f, q + 2 * pairs * kLanes), sum0);
  }
  return hn::Add(sum0, sum1);
}

// Computes the dot products of a query with `count` keys, where count is a power of two and at most kLanes. The result
// has kLanes / count consecutive lanes per key, whose sum is the dot product with this key. If count is kLanes, lane n
// is the dot product with key n. The recursion adds adjacent lanes of two vectors at a time, which needs three
// instructions per key; summing the lanes of each key separately would need about twelve.
template <typename Load, int kPairs, size_t count>
HWY_INLINE VF products(const uint8_t* const* keys, int64_t skip, const float* q, size_t dims) {
  if constexpr (count == 1) {
    return lane_products<Load, kPairs>(reinterpret_cast<const typename Load::T*>(keys[0] + skip), q, dims);
  } else {
    const VF a = products<Load, kPairs, count / 2>(keys, skip, q, dims);
    const VF b = products<Load, kPairs, count / 2>(keys + count / 2, skip, q, dims);
#if HWY_TARGET == HWY_SCALAR
    return hn::Add(a, b);  // not reached: a vector has one lane
#else
    return hn::Add(hn::ConcatEven(F(), b, a), hn::ConcatOdd(F(), b, a));
#endif
  }
}

template <typename Load>
HWY_INLINE VF products_of(const uint8_t* const* keys, int64_t skip, const float* q, size_t dims) {
  switch (dims) {
    case 4 * kLanes:
      return products<Load, 2, kLanes>(keys, skip, q, dims);  // head size 64 with AVX-512
    case 8 * kLanes:
      return products<Load, 4, kLanes>(keys, skip, q, dims);
    default:
      return products<Load, -1, kLanes>(keys, skip, q, dims);
  }
}

void decode_load(const Problem& p, const Decode<float>& a, const DecodeSequence& s) {
  const size_t pairs =
      p.dtype == DType::bf16 && whole_vectors(a.k, p.head_dim) ? p.head_dim / (2 * kLanes) * 2 * kLanes : 0;
  float row_of_q[kMaxDims];
  for (int64_t row = 0; row < p.heads * p.q_length; ++row) {
    const DecodeRow at = decode_row(p, row);
    float* to = s.q + row * s.q_stride;
    load_row(p.dtype, a.q.data, s.batch * a.q.batch + at.query * a.q.token + at.head * a.q.head, a.q.dim, p.head_dim,
             1.0f, row_of_q);
    std::copy_n(row_of_q, p.head_dim, to);
    for (size_t d = 0; d < pairs; d += 2 * kLanes) {
      for (size_t n = 0; n < kLanes; ++n) {
        to[d + n] = row_of_q[d + 2 * n];
        to[d + kLanes + n] = row_of_q[d + 2 * n + 1];
      }
    }
    fill(to, p.head_dim, s.q_stride, 0);
  }
}

// Prefetch distance in bytes. Keys are read from consecutive addresses, but the hardware prefetchers stop at the
// boundaries of memory pages.
constexpr int64_t kAhead = 4096;

template <typename Load>
HWY_INLINE void score_block(const Problem& p, const Decode<float>& a, const DecodeSequence& s, KvHeads heads,
                            const uint8_t* const* keys, int64_t count, float* scores) {
  const int64_t group_rows = p.heads / p.kv_heads * p.q_length, size = static_cast<int64_t>(element_size(p.dtype));
  const size_t dims = round_up(p.head_dim, kLanes);
  const bool in_place = whole_vectors(a.k, p.head_dim);
  // If several rows share a key, convert it to fp32 only once.
  const bool direct = in_place && (group_rows == 1 || p.dtype == DType::f32);
  const VF scale = hn::Set(F(), product_scale(p));
  const int64_t lanes = kLanes;
  HWY_ALIGN float copies[kLanes * kMaxDims];
  const uint8_t* some[kLanes];
  const uint8_t* copied[kLanes];
  for (size_t n = 0; n < kLanes; ++n) copied[n] = reinterpret_cast<const uint8_t*>(copies + n * kMaxDims);
  for (int64_t n0 = 0; n0 < count; n0 += lanes) {
    for (int64_t n = 0; n < lanes; ++n) some[n] = keys[std::min(n0 + n, count - 1)];
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      const int64_t skip = h * a.k.head * size;
      if (in_place) {
        for (int64_t n = 0; n < lanes; ++n) {
          for (int64_t at = 0; at < p.head_dim * size; at += 64) __builtin_prefetch(some[n] + skip + kAhead + at);
        }
      }
      if (!direct) {
        for (int64_t n = 0; n < lanes; ++n) {
          float* to = copies + n * kMaxDims;
          if (!in_place) {
            copy_row(p.dtype, some[n] + skip, a.k.dim, p.head_dim, to);
          } else {
            const auto* key = reinterpret_cast<const typename Load::T*>(some[n] + skip);
            VF k0, k1;
            size_t d = 0;
            for (; d + 2 * kLanes <= dims; d += 2 * kLanes) {
              Load::pair(key + d, k0, k1);
              hn::StoreU(k0, F(), to + d);
              hn::StoreU(k1, F(), to + d + kLanes);
            }
            if (d < dims) hn::StoreU(Load::vector(key + d), F(), to + d);
          }
        }
      }
      for (int64_t r = 0; r < group_rows; ++r) {
        const int64_t row = h * group_rows + r;
        const float* q = s.q + row * s.q_stride;
        const VF product = direct ? products_of<Load>(some, skip, q, dims) : products_of<LoadF32>(copied, 0, q, dims);
        hn::StoreU(hn::Mul(product, scale), F(), scores + row * s.strip + n0);
      }
    }
  }
}

void decode_scores(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end) {
  in_memory_order(p, a.k, [&](KvHeads heads) HWY_ATTR {
    for (int64_t j = begin; j < end; j += kBlock) {
      const int64_t count = std::min(kBlock, end - j);
      const uint8_t* keys[kBlock];
      key_addresses(a, a.k, p.dtype, s.batch, j, count, keys);
      with_type(p.dtype, [&](auto load) HWY_ATTR {
        score_block<decltype(load)>(p, a, s, heads, keys, count, s.scores + (j - s.keys_begin));
      });
    }
  });
}

void decode_normalize(const Problem& problem, const Decode<float>& a, const DecodeSequence& s, int64_t index,
                      const HeadParameters& head) {
  Problem p = problem;
  p.k_length = a.lengths[s.batch];
  const DecodeRow at = decode_row(p, index);
  const RowBlock block{kernels::sequence(p, s.batch), at.head, at.query, 1, s.keys_begin, s.keys_end};
  StripRow row = make_row(p, block, 0);
  row.count = offset_count(p, a, s.batch, at.query, row.count);
  finish_row(p, a, block, 0, row, head, s.scores + index * s.strip, s.strip - strip_stride(0));
}

// Computes out[r] += sum of weight[r][n] row[offset[n]] over the entries n of the list, where each row of `out` has kV
// vectors.
template <typename Load, int kR, int kV>
HWY_INLINE void gather_rows(const AliveList& list, const uint8_t* const* rows, size_t skip, float* HWY_RESTRICT out,
                            size_t out_row) {
  const F f;
  VF sum[kR][kV];
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) sum[r][v] = hn::LoadU(f, out + r * out_row + v * kLanes);
  }
  for (size_t n = 0; n < list.count; ++n) {
    const auto* HWY_RESTRICT row = reinterpret_cast<const typename Load::T*>(rows[n]) + skip;
    VF value[kV];
    for (int v = 0; v < kV; ++v) value[v] = Load::vector(row + v * kLanes);
    for (int r = 0; r < kR; ++r) {
      const VF weight = hn::Set(f, list.weight[r][n]);
      for (int v = 0; v < kV; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) hn::StoreU(sum[r][v], f, out + r * out_row + v * kLanes);
  }
}

template <typename Load, int kR>
HWY_INLINE void gather_dims(const AliveList& list, const uint8_t* const* rows, size_t dims, float* out,
                            size_t out_row) {
  size_t d = 0;
  for (; d + 4 * kLanes <= dims; d += 4 * kLanes) gather_rows<Load, kR, 4>(list, rows, d, out + d, out_row);
  for (; d < dims; d += kLanes) gather_rows<Load, kR, 1>(list, rows, d, out + d, out_row);
}

// The keys of a block of kBlock keys that have a nonzero weight in one or two rows of weights, and the addresses of
// their rows of V.
struct AliveRows {
  AliveList list;
  const uint8_t* rows[kBlock];
  float* out;
  bool two;
};

void decode_values(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end,
                   float* out) {
  const int64_t group_rows = p.heads / p.kv_heads * p.q_length, size = static_cast<int64_t>(element_size(p.dtype));
  const size_t dims = round_up(p.value_dim, kLanes);
  const bool in_place = whole_vectors(a.v, p.value_dim);
  std::fill_n(out, p.heads * p.q_length * s.v_stride, 0.0f);
  thread_local std::vector<float> copies;
  if (!in_place && copies.size() < kBlock * dims) copies.resize(kBlock * dims);
  auto add = [&](AliveRows& alive) HWY_ATTR {
    if (!in_place) {
      for (size_t n = 0; n < alive.list.count; ++n) {
        const float* copy = copy_row(p.dtype, alive.rows[n], a.v.dim, p.value_dim, copies.data() + n * dims);
        alive.rows[n] = reinterpret_cast<const uint8_t*>(copy);
      }
    }
    with_type(in_place ? p.dtype : DType::f32, [&](auto load) HWY_ATTR {
      using Load = decltype(load);
      if (alive.two) {
        gather_dims<Load, 2>(alive.list, alive.rows, dims, alive.out, s.v_stride);
      } else {
        gather_dims<Load, 1>(alive.list, alive.rows, dims, alive.out, s.v_stride);
      }
    });
  };
  // The hardware prefetchers cannot predict which rows of V have a nonzero weight. Therefore, software prefetches load
  // the rows of the next list while the rows of the current list are summed.
  AliveRows lists[2];
  lists[1].list.count = 0;
  int next = 0;
  in_memory_order(p, a.v, [&](KvHeads heads) HWY_ATTR {
    for (int64_t j = begin; j < end; j += kBlock) {
      const int64_t count = std::min(kBlock, end - j);
      const uint8_t* keys[kBlock];
      key_addresses(a, a.v, p.dtype, s.batch, j, count, keys);
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        for (int64_t r = 0; r < group_rows; r += 2) {
          AliveRows& alive = lists[next];
          alive.two = r + 1 < group_rows;
          alive.out = out + (h * group_rows + r) * s.v_stride;
          const float* weights = s.scores + (h * group_rows + r) * s.strip + (j - s.keys_begin);
          list_alive(weights, weights + (alive.two ? s.strip : 0), static_cast<size_t>(count), 1, alive.list);
          for (size_t n = 0; n < alive.list.count; ++n) {
            const uint8_t* row = keys[alive.list.offset[n]] + h * a.v.head * size;
            alive.rows[n] = row;
            if (in_place) {
              for (int64_t at = 0; at < p.value_dim * size; at += 64) __builtin_prefetch(row + at);
            }
          }
          next = 1 - next;
          if (lists[next].list.count > 0) add(lists[next]);
        }
      }
    }
  });
  if (lists[1 - next].list.count > 0) add(lists[1 - next]);
}

void decode_store(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, float* parts,
                  size_t count, size_t step) {
  const F f;
  const DecodeRow at = decode_row(p, row);
  HWY_ALIGN float sum[kMaxDims];
  for (size_t d = 0; d < s.v_stride; d += kLanes) {
    VF total = hn::Zero(f);
    for (size_t n = 0; n < count; ++n) total = hn::Add(total, hn::LoadU(f, parts + n * step + row * s.v_stride + d));
    hn::StoreU(total, f, sum + d);
  }
  store_row(p.dtype, sum, p.value_dim, 1.0f, a.out.data,
            s.batch * a.out.batch + at.query * a.out.token + at.head * a.out.head, a.out.dim);
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lazy::kernels::cpu {

HWY_EXPORT(decode_load);
HWY_EXPORT(decode_scores);
HWY_EXPORT(decode_normalize);
HWY_EXPORT(decode_values);
HWY_EXPORT(decode_store);

void decode_load(const Problem& p, const Decode<float>& a, const DecodeSequence& s) {
  HWY_DYNAMIC_DISPATCH(decode_load)(p, a, s);
}
void decode_scores(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(decode_scores)(p, a, s, begin, end);
}
void decode_normalize(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row,
                      const HeadParameters& head) {
  HWY_DYNAMIC_DISPATCH(decode_normalize)(p, a, s, row, head);
}
void decode_values(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end,
                   float* out) {
  HWY_DYNAMIC_DISPATCH(decode_values)(p, a, s, begin, end, out);
}
void decode_store(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, float* parts,
                  size_t count, size_t step) {
  HWY_DYNAMIC_DISPATCH(decode_store)(p, a, s, row, parts, count, step);
}

}  // namespace lazy::kernels::cpu
#endif
