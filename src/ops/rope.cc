#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/fused.h"
#include "ops/rows.h"

namespace lazy::ops {

void check_rope(const at::Tensor& x, const OptionalTensor& positions, const RopeArguments& a) {
  row_type("rope", x);
  LAZY_CHECK("rope", x.dim() == 4 || x.dim() == 3,
             "x of shape (batch, length, heads, head_dim) or (tokens, heads, head_dim), received ", x.sym_sizes());
  LAZY_CHECK("rope", a.rotary_dim >= 2 && a.rotary_dim % 2 == 0 && x.sym_size(-1) >= a.rotary_dim,
             "an even rotary_dim from 2 to head_dim, ", x.sym_size(-1), ", received ", a.rotary_dim);
  LAZY_CHECK("rope", a.base > 1 && std::isfinite(a.base), "base above 1, received ", a.base);
  LAZY_CHECK("rope", a.offset >= 0, "offset of at least 0, received ", a.offset);
  const RopeScaling& s = a.scaling;
  const bool llama3 = s.type == "llama3", yarn = s.type == "yarn", longrope = s.type == "longrope";
  LAZY_CHECK("rope", llama3 || yarn || longrope || s.type == "none" || s.type == "linear",
             "scaling to be \"none\", \"linear\", \"llama3\", \"yarn\" or \"longrope\", received \"", s.type, "\"");
  LAZY_CHECK("rope", s.factor > 0 && std::isfinite(s.factor), "factor above 0, received ", s.factor);
  LAZY_CHECK("rope", s.type != "none" || s.factor == 1, "factor 1 for scaling \"none\", received ", s.factor);
  LAZY_CHECK("rope", !(llama3 || yarn || longrope) || s.original_length > 0, "original_length above 0 for scaling \"",
             s.type, "\", received ", s.original_length);
  LAZY_CHECK("rope", !llama3 || s.high_frequency > s.low_frequency, "high_frequency above low_frequency, received ",
             s.high_frequency, " and ", s.low_frequency);
  LAZY_CHECK("rope", !yarn || (s.beta_slow > 0 && s.beta_fast >= s.beta_slow), "beta_fast >= beta_slow > 0, received ",
             s.beta_fast, " and ", s.beta_slow);
  LAZY_CHECK("rope", s.attention_factor >= 0, "attention_factor of at least 0, received ", s.attention_factor);
  LAZY_CHECK("rope", !longrope || s.attention_factor > 0 || s.factor <= 1 || s.original_length > 1,
             "original_length above 1 for longrope without attention_factor, received ", s.original_length);
  const int64_t pairs = longrope ? a.rotary_dim / 2 : 0, factors = static_cast<int64_t>(s.pair_factors.size());
  LAZY_CHECK("rope", factors == pairs, pairs, " pair_factors for scaling \"", s.type, "\", received ", factors);
  for (const double factor : s.pair_factors)
    LAZY_CHECK("rope", factor > 0 && std::isfinite(factor), "pair_factors above 0, received ", factor);
  if (!positions || !positions->defined()) return;
  LAZY_CHECK("rope", positions->scalar_type() == at::kInt || positions->scalar_type() == at::kLong,
             "positions of type int32 or int64, received ", positions->scalar_type());
  LAZY_CHECK("rope", positions->device() == x.device(), "positions on ", x.device(), " like x, received ",
             positions->device());
  const bool per_token = positions->dim() == 1 && positions->sym_size(0) == x.sym_size(-3);
  const bool per_batch = x.dim() == 4 && positions->dim() == 2 && positions->sym_sizes() == x.sym_sizes().slice(0, 2);
  LAZY_CHECK("rope", per_token || per_batch, "positions of shape (length) or (batch, length), received ",
             positions->sym_sizes(), " for x of ", x.sym_sizes());
  LAZY_CHECK("rope", a.offset == 0, "offset 0 if positions are given, received ", a.offset);
}

RopeKey rope_key(const RopeArguments& a) {
  const RopeScaling& s = a.scaling;
  return {a.base,           a.rotary_dim, s.type,      s.factor,   s.original_length,  s.low_frequency,
          s.high_frequency, s.beta_fast,  s.beta_slow, s.truncate, s.attention_factor, s.pair_factors};
}

void check_last_rope_position(int64_t last) {
  LAZY_CHECK("rope", last < kMaxRopePositions, "positions below ", kMaxRopePositions, ", received ", last);
}

namespace {

// Cosines and sines for each position and pair. The tables are cached for the process, because computing an fp64 sine
// takes longer than rotating a pair.
struct AngleTable {
  int64_t positions = 0, pairs = 0;
  std::vector<float> cos, sin;  // (positions, pairs)
};

std::shared_ptr<const AngleTable> table(const RopeArguments& a, int64_t positions) {
  static std::mutex mutex;
  static std::map<RopeKey, std::shared_ptr<const AngleTable>> tables;
  std::lock_guard lock(mutex);
  auto& known = tables[rope_key(a)];
  if (known && known->positions >= positions) return known;
  const RopeFrequencies frequencies = rope_frequencies(a.base, a.rotary_dim, a.scaling);
  auto grown = std::make_shared<AngleTable>();
  grown->positions = std::max(positions, known ? 2 * known->positions : int64_t{256});
  grown->pairs = a.rotary_dim / 2;
  grown->cos.resize(grown->positions * grown->pairs);
  grown->sin.resize(grown->positions * grown->pairs);
  for (int64_t d = 0; d < grown->pairs; ++d) {
    for (int64_t t = 0; t < grown->positions; ++t) {
      const double angle = static_cast<double>(t) * frequencies.per_pair[d];
      grown->cos[t * grown->pairs + d] = static_cast<float>(frequencies.attention_factor * std::cos(angle));
      grown->sin[t * grown->pairs + d] = static_cast<float>(frequencies.attention_factor * std::sin(angle));
    }
  }
  return known = grown;
}

at::Tensor rope_forward_cpu(LAZY_ROPE_PARAMETERS) {
  const RopeArguments a LAZY_ROPE_PACK;
  check_rope(x, positions, a);
  const at::Tensor in = x.stride(-1) == 1 ? x : x.contiguous();
  const bool packed = x.dim() == 3;
  const int64_t batch = packed ? 1 : x.size(0), length = x.size(-3), heads = x.size(-2), dim = x.size(-1);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  at::Tensor place;
  int64_t last = a.offset + length - 1;
  if (positions && positions->defined()) {
    place = positions->to(at::kLong).expand({batch, length}).contiguous();
    const int64_t* first = place.const_data_ptr<int64_t>();
    const auto [smallest, largest] = std::minmax_element(first, first + place.numel());
    LAZY_CHECK("rope", *smallest >= 0, "positions of at least 0, received ", *smallest);
    last = *largest;
  }
  check_last_rope_position(last);
  const int64_t* at = place.defined() ? place.const_data_ptr<int64_t>() : nullptr;
  const auto angles = table(a, last + 1);
  const int64_t batch_stride = packed ? 0 : in.stride(0), token_stride = in.stride(-3), head_stride = in.stride(-2);
  const kernels::DType type = row_type("rope", x);
  const void* from = in.const_data_ptr();
  void* to = y.mutable_data_ptr();
  parallel_rows(batch * length, heads * dim, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t b = n / length, t = n % length, row = (at ? at[n] : a.offset + t) * angles->pairs;
      rows::rope(type, from, b * batch_stride + t * token_stride, head_stride, angles->cos.data() + row,
                 angles->sin.data() + row, inverse ? -1.0f : 1.0f, a.rotary_dim, a.interleaved, to, n * heads * dim,
                 heads, dim);
    }
  });
  return y;
}

}  // namespace

LAZY_SCHEMAS(m) {
  m.def(
      "rope(Tensor x, float base=10000.0, int offset=0, bool inverse=False, *, Tensor? positions=None, int "
      "rotary_dim=-1, "
      "bool interleaved=False, str scaling=\"none\", float factor=1.0, int original_length=0, float low_frequency=1.0, "
      "float high_frequency=4.0, float beta_fast=32.0, float beta_slow=1.0, bool truncate=True, "
      "float attention_factor=0.0, float[] pair_factors=[]) -> Tensor");
}
LAZY_KERNELS(CPU, m) { m.impl("rope", LAZY_KERNEL(rope_forward_cpu)); }

}  // namespace lazy::ops
