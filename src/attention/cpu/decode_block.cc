// Decode's vector code: scores straight from the cache's rows, and weighted sums over the rows of V that are alive.
#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/decode_block.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attention/cpu/alive-inl.h"
#include "attention/cpu/convert-inl.h"
#include "attention/cpu/decode_dispatch.h"
#include "attention/cpu/normalize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

constexpr int64_t kBlock = 64;              // keys at a time: their addresses, and lists of the alive, stay in L1
constexpr size_t kMostDims = 256;

// Element types of a cache: how a vector of fp32 is loaded.
struct LoadF32 {
  using T = float;
  static HWY_INLINE VF vector(const T* from) { return hn::LoadU(F(), from); }
};
struct LoadBF16 {
  using T = uint16_t;
  static HWY_INLINE VF vector(const T* from) {
    const hn::RebindToUnsigned<F> u32;
    const hn::Rebind<uint16_t, F> u16;
    return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, from))));
  }
};
struct LoadF16 {
  using T = hwy::float16_t;
  static HWY_INLINE VF vector(const T* from) { return hn::PromoteTo(F(), hn::LoadU(hn::Rebind<hwy::float16_t, F>(), from)); }
};

size_t element_size(DType type) { return type == DType::f32 ? 4 : 2; }

// Calls function(Load()) for the cache's type.
template <typename Function>
HWY_INLINE void with_type(DType type, const Function& function) {
  switch (type) {
    case DType::bf16: return function(LoadBF16());
    case DType::f16: return function(LoadF16());
    default: return function(LoadF32());
  }
}

// Addresses of the keys [begin, begin + count) of a cache, before the head's offset.
HWY_INLINE void key_addresses(const Decode<float>& a, const ConstView& cache, DType type, int64_t b, int64_t begin,
                              int64_t count, const uint8_t** to) {
  const auto* data = static_cast<const uint8_t*>(cache.data);
  const auto size = static_cast<int64_t>(element_size(type));
  for (int64_t n = 0; n < count; ++n) {
    const int64_t j = begin + n;
    const int64_t offset = a.block_table ? a.block_table[b * a.table_width + j / a.page_size] * cache.batch + j % a.page_size * cache.token
                                         : b * cache.batch + j * cache.token;
    to[n] = data + offset * size;
  }
}

// Rows can be read as whole vectors where they lie.
bool whole_vectors(const ConstView& cache, int64_t dim) { return cache.dim == 1 && dim % static_cast<int64_t>(kLanes) == 0; }

// An fp32 copy of a row, with zeros up to whole vectors.
const float* copy_row(DType type, const uint8_t* from, int64_t stride, size_t dim, float* to) {
  load_row(type, from, 0, stride, dim, 1.0f, to);
  std::fill(to + dim, to + round_up(dim, kLanes), 0.0f);
  return to;
}

template <typename Load>
HWY_INLINE float dot(const typename Load::T* HWY_RESTRICT key, const float* HWY_RESTRICT q, size_t dims) {
  const F f;
  VF sum0 = hn::Zero(f), sum1 = hn::Zero(f);
  size_t d = 0;
  for (; d + 2 * kLanes <= dims; d += 2 * kLanes) {
    sum0 = hn::MulAdd(Load::vector(key + d), hn::LoadU(f, q + d), sum0);
    sum1 = hn::MulAdd(Load::vector(key + d + kLanes), hn::LoadU(f, q + d + kLanes), sum1);
  }
  if (d < dims) sum0 = hn::MulAdd(Load::vector(key + d), hn::LoadU(f, q + d), sum0);
  return sum_lanes(hn::Add(sum0, sum1));
}

void decode_load(const Problem& p, const Decode<float>& a, const DecodeSequence& s) {
  for (int64_t row = 0; row < p.heads * p.q_length; ++row) {
    const DecodeRow at = decode_row(p, row);
    float* to = s.q + row * s.q_stride;
    load_row(p.dtype, a.q.data, s.batch * a.q.batch + at.query * a.q.token + at.head * a.q.head, a.q.dim, p.head_dim, 1.0f, to);
    fill(to, p.head_dim, s.q_stride, 0);
  }
}

void decode_scores(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end) {
  const int64_t group_rows = p.heads / p.kv_heads * p.q_length, size = static_cast<int64_t>(element_size(p.dtype));
  const size_t dims = round_up(p.head_dim, kLanes);
  const bool in_place = whole_vectors(a.k, p.head_dim), key_by_key = a.k.head < a.k.token;
  const float scale = static_cast<float>(p.scale);
  for (int64_t j = begin; j < end; j += kBlock) {
    const int64_t count = std::min(kBlock, end - j);
    const uint8_t* keys[kBlock];
    key_addresses(a, a.k, p.dtype, s.batch, j, count, keys);
    float* scores = s.scores + (j - s.keys_begin);
    auto one = [&](int64_t n, int64_t h) HWY_ATTR {
      HWY_ALIGN float copy[kMostDims];
      const uint8_t* key = keys[n] + h * a.k.head * size;
      const float* q = s.q + h * group_rows * s.q_stride;
      float* to = scores + h * group_rows * s.strip + n;
      if (in_place && group_rows == 1) {
        with_type(p.dtype, [&](auto load) HWY_ATTR {
          using Load = decltype(load);
          *to = scale * dot<Load>(reinterpret_cast<const typename Load::T*>(key), q, dims);
        });
        return;
      }
      if (in_place) {                       // converted once for all rows that share it
        with_type(p.dtype, [&](auto load) HWY_ATTR {
          using Load = decltype(load);
          for (size_t d = 0; d < dims; d += kLanes) {
            hn::StoreU(Load::vector(reinterpret_cast<const typename Load::T*>(key) + d), F(), copy + d);
          }
        });
      } else {
        copy_row(p.dtype, key, a.k.dim, p.head_dim, copy);
      }
      for (int64_t r = 0; r < group_rows; ++r) to[r * s.strip] = scale * dot<LoadF32>(copy, q + r * s.q_stride, dims);
    };
    // In the order of memory.
    if (key_by_key) {
      for (int64_t n = 0; n < count; ++n) {
        for (int64_t h = 0; h < p.kv_heads; ++h) one(n, h);
      }
    } else {
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        for (int64_t n = 0; n < count; ++n) one(n, h);
      }
    }
  }
}

void decode_normalize(const Problem& problem, const Decode<float>& a, const DecodeSequence& s, int64_t index,
                      const HeadParameters& head) {
  Problem p = problem;
  p.k_length = a.lengths[s.batch];
  const DecodeRow at = decode_row(p, index);
  const Sequence sequence = kernels::sequence(p, 0);
  const KeyRange keys = visible_keys(p, sequence, at.query);
  float* scores = s.scores + index * s.strip;
  const size_t columns = s.strip - strip_stride(0);
  RowSummary summary;
  float first = 0;
  if (keys.count() > 0) {
    Row row;
    row.begin = static_cast<size_t>(keys.begin - s.keys_begin);
    row.end = static_cast<size_t>(keys.end - s.keys_begin);
    row.vector_begin = row.begin / kLanes * kLanes;
    row.vector_end = round_up(row.end, kLanes);
    row.position = position(sequence, at.query) - s.keys_begin;
    row.count = offset_count(p, a, s.batch, at.query, keys.count());
    finish_scores(p, row, head, scores);
    summary = normalize_row(p, row, head, scores, 0, columns);
    if (keys.begin == 0) first = scores[0];
  } else {
    summary.lse = -std::numeric_limits<float>::infinity();
    fill(scores, 0, columns, 0);
  }
  const int64_t to = (s.batch * p.heads + at.head) * p.q_length + at.query, part = p.batch * p.heads * p.q_length;
  if (a.lse) a.lse[to] = summary.lse;
  if (a.stats) {
    a.stats[to] = first;
    a.stats[part + to] = 1 - summary.sum;
    a.stats[2 * part + to] = static_cast<float>(summary.alive);
  }
}

// out[r] (kV vectors) += sum over the list of weight[r][n] row[offset[n]]
template <typename Load, int kR, int kV>
HWY_INLINE void gather_rows(const AliveList& list, const uint8_t* const* rows, size_t skip, float* HWY_RESTRICT out,
                            size_t out_row) {
  const F f;
  VF sum[kR][kV];
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) sum[r][v] = hn::LoadU(f, out + r * out_row + v * kLanes);
  }
  for (size_t n = 0; n < list.count; ++n) {
    const auto* HWY_RESTRICT row = reinterpret_cast<const typename Load::T*>(rows[list.offset[n]]) + skip;
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
HWY_INLINE void gather_dims(const AliveList& list, const uint8_t* const* rows, size_t dims, float* out, size_t out_row) {
  size_t d = 0;
  for (; d + 4 * kLanes <= dims; d += 4 * kLanes) gather_rows<Load, kR, 4>(list, rows, d, out + d, out_row);
  for (; d < dims; d += kLanes) gather_rows<Load, kR, 1>(list, rows, d, out + d, out_row);
}

void decode_values(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end, float* out) {
  const int64_t group_rows = p.heads / p.kv_heads * p.q_length, size = static_cast<int64_t>(element_size(p.dtype));
  const size_t dims = round_up(p.value_dim, kLanes);
  const bool in_place = whole_vectors(a.v, p.value_dim);
  std::fill_n(out, p.heads * p.q_length * s.v_stride, 0.0f);
  AliveList list;
  thread_local std::vector<float> copies;
  if (!in_place && copies.size() < kBlock * dims) copies.resize(kBlock * dims);
  for (int64_t j = begin; j < end; j += kBlock) {
    const int64_t count = std::min(kBlock, end - j);
    const uint8_t* keys[kBlock];
    key_addresses(a, a.v, p.dtype, s.batch, j, count, keys);
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      const uint8_t* rows[kBlock];
      for (int64_t n = 0; n < count; ++n) rows[n] = keys[n] + h * a.v.head * size;
      if (!in_place) {
        for (int64_t n = 0; n < count; ++n) {
          rows[n] = reinterpret_cast<const uint8_t*>(copy_row(p.dtype, rows[n], a.v.dim, p.value_dim, copies.data() + n * dims));
        }
      }
      for (int64_t r = 0; r < group_rows; r += 2) {
        const bool two = r + 1 < group_rows;
        const float* weights = s.scores + (h * group_rows + r) * s.strip + (j - s.keys_begin);
        list_alive(weights, weights + (two ? s.strip : 0), static_cast<size_t>(count), 1, list);
        if (list.count == 0) continue;
        float* to = out + (h * group_rows + r) * s.v_stride;
        with_type(in_place ? p.dtype : DType::f32, [&](auto load) HWY_ATTR {
          using Load = decltype(load);
          if (two) {
            gather_dims<Load, 2>(list, rows, dims, to, s.v_stride);
          } else {
            gather_dims<Load, 1>(list, rows, dims, to, s.v_stride);
          }
        });
      }
    }
  }
}

void decode_store(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, float* parts, size_t count,
                  size_t step) {
  const F f;
  const DecodeRow at = decode_row(p, row);
  HWY_ALIGN float sum[kMostDims];
  for (size_t d = 0; d < s.v_stride; d += kLanes) {
    VF total = hn::Zero(f);
    for (size_t n = 0; n < count; ++n) total = hn::Add(total, hn::LoadU(f, parts + n * step + row * s.v_stride + d));
    hn::StoreU(total, f, sum + d);
  }
  store_row(p.dtype, sum, p.value_dim, 1.0f, a.out.data, s.batch * a.out.batch + at.query * a.out.token + at.head * a.out.head,
            a.out.dim);
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
void decode_normalize(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, const HeadParameters& head) {
  HWY_DYNAMIC_DISPATCH(decode_normalize)(p, a, s, row, head);
}
void decode_values(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_values)(p, a, s, begin, end, out);
}
void decode_store(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, float* parts, size_t count,
                  size_t step) {
  HWY_DYNAMIC_DISPATCH(decode_store)(p, a, s, row, parts, count, step);
}

}  // namespace lazy::kernels::cpu
#endif
