#include "model/positions/relative_matrices.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "ops/attention_weights.h"

namespace lazy {
namespace {

// Of every pair (queries, keys).
struct Pairs {
  at::Tensor distance, visible, remembered;  // the last: keys of segments before the query's
};

Pairs pairs_of(const RelativeInputs& in) {
  const int64_t keys = in.k.size(1), queries = in.q.size(1), length = in.segments.length;
  const auto places = at::TensorOptions().dtype(at::kLong).device(in.q.device());
  const at::Tensor key = at::arange(in.first, in.first + keys, places);
  const at::Tensor query = key.narrow(0, keys - queries, queries).unsqueeze(1);
  const at::Tensor begin = length > 0 ? query.div(length, "floor") * length : at::zeros_like(query);
  Pairs pairs{query - key, {}, key.lt(begin)};
  pairs.visible = pairs.distance.ge(0);
  if (length > 0) pairs.visible = pairs.visible.logical_and(key.ge(begin - in.segments.memory));
  if (in.attention.window > 0) pairs.visible = pairs.visible.logical_and(pairs.distance.lt(in.attention.window));
  return pairs;
}

// (batch, keys, kv_heads, head_dim) -> (batch, heads, keys, head_dim)
at::Tensor to_heads(const at::Tensor& x, int64_t heads) {
  return x.transpose(1, 2).repeat_interleave(heads / x.size(2), 1);
}

}  // namespace

at::Tensor relative_scores(const RelativeInputs& in) {
  const at::ScalarType type = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t heads = in.q.size(2), keys = in.k.size(1), known = in.r.size(0);
  const double root = std::sqrt(static_cast<double>(in.q.size(3)));
  const Pairs pairs = pairs_of(in);
  const at::Tensor q = in.q.to(type), asks = (q + in.content_bias).transpose(1, 2);
  const auto content = [&](const at::Tensor& k) {
    return at::matmul(asks, to_heads(k.to(type), heads).transpose(2, 3));
  };
  at::Tensor s = content(in.k);
  if (in.past_k.defined()) s = at::where(pairs.remembered, content(in.past_k), s);
  // Row known - 1 - d of r is of distance d; those beyond it are not visible.
  const at::Tensor by_row = at::matmul((q + in.position_bias).transpose(1, 2), in.r.to(type).permute({1, 2, 0}));
  const at::Tensor row = known - 1 - pairs.distance.clamp(0, known - 1);
  s = (s + by_row.gather(3, row.expand({s.size(0), heads, row.size(0), keys}))) / root;
  if (in.distance_bias.defined()) {
    const int64_t window = in.distance_bias.size(1);
    const at::Tensor bias =
        in.distance_bias.to(type).index_select(1, pairs.distance.clamp(0, window - 1).reshape({-1}));
    s = s + bias.view({heads, row.size(0), keys}) * pairs.distance.lt(window);
  }
  return s.masked_fill(pairs.visible.logical_not(), -std::numeric_limits<double>::infinity());
}

at::Tensor relative_values(const at::Tensor& weights, const RelativeInputs& in) {
  if (!in.past_v.defined()) return ops::weighted_values(weights, in.v);
  const at::Tensor remembered = pairs_of(in).remembered;
  return ops::weighted_values(weights.masked_fill(remembered, 0), in.v) +
         ops::weighted_values(weights.masked_fill(remembered.logical_not(), 0), in.past_v);
}

}  // namespace lazy
