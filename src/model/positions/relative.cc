#include "model/positions/relative.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "model/blocks/activation_checkpoint.h"
#include "ops/attention_weights.h"

namespace lazy {

namespace {

constexpr int64_t kStrip = 128;  // queries per block

// The relative shift of Transformer-XL converts scores per distance (..., S, N) to scores per key (..., S, N). In the
// input, column c has distance N - 1 - c to the last query. Row i is shifted left by S - 1 - i columns. The values that
// are shifted in from the right belong to later keys, which are masked.
at::Tensor by_key(const at::Tensor& x) {
  const int64_t S = x.size(-2), N = x.size(-1);
  return at::constant_pad_nd(x, {1, 0}).flatten(-2).narrow(-1, S, S * N).unflatten(-1, {S, N});
}

// One block of queries, which are the last S of N tokens. All queries of a block are in the same segment.
struct Strip {
  ops::AttentionOptions options;

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& in) const {
    const at::Tensor &q_BSHD = in[0], &k_BNGD = in[1], &v_BNGD = in[2], &r_NHD = in[3], &u_HD = in[4], &w_HD = in[5],
                     &bias = in[6], &tau = in[7], &sink = in[8];
    const int64_t B = q_BSHD.size(0), S = q_BSHD.size(1), H = q_BSHD.size(2), D = q_BSHD.size(3), N = k_BNGD.size(1),
                  G = k_BNGD.size(2);
    const at::ScalarType type = q_BSHD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor q = q_BSHD.to(type), k = k_BNGD.to(type).permute({0, 2, 3, 1});
    const at::Tensor asks = (q + u_HD).transpose(1, 2).reshape({B, G, H / G * S, D});
    const at::Tensor content_BHSN = at::matmul(asks, k).view({B, H, S, N});
    const at::Tensor where = (q + w_HD).permute({2, 0, 1, 3}).reshape({H, B * S, D});
    at::Tensor position_HBSN = at::matmul(where, r_NHD.to(type).permute({1, 2, 0})).view({H, B, S, N});
    const double root = std::sqrt(static_cast<double>(D));
    if (bias.defined()) position_HBSN = position_HBSN + root * by_distance(bias.to(type), N).view({H, 1, 1, N});
    const at::Tensor row = at::arange(N - S, N, q.options().dtype(at::kLong).requires_grad(false)).unsqueeze(1);
    const at::Tensor distance = row - at::arange(N, row.options());
    at::Tensor visible = distance.ge(0);
    if (options.window > 0) visible = visible & distance.lt(options.window);
    const at::Tensor s_BHSN =
        ((content_BHSN + by_key(position_HBSN).transpose(0, 1)) / root).masked_fill(visible.logical_not(), -INFINITY);
    ops::AttentionOptions weighing = options;
    weighing.sink = sink;
    const at::Tensor p = ops::block_weights(s_BHSN, visible, visible.sum(1, true).to(type), tau, weighing);
    const at::Tensor v = v_BNGD.to(type).transpose(1, 2);
    const at::Tensor out = at::matmul(p.view({B, G, H / G * S, N}), v).view({B, H, S, D}).transpose(1, 2);
    std::vector<at::Tensor> results = {out.to(q_BSHD.scalar_type())};
    if (options.return_stats)
      results.push_back(at::stack({p.select(3, 0), 1 - p.sum(3), p.gt(0).sum(3).to(type)}).to(at::kFloat));
    return results;
  }

  // Converts bias (heads, W), with columns for the distances 0, 1, ..., to (heads, N), with columns for the distances N
  // - 1 to 0. Columns for distances of W and more are zero.
  static at::Tensor by_distance(const at::Tensor& bias, int64_t N) {
    const int64_t known = std::min(N, bias.size(1));
    return at::constant_pad_nd(bias.narrow(1, 0, known), {0, N - known}).flip(1);
  }
};

}  // namespace

at::Tensor relative_encodings(int64_t count, int64_t dim, int64_t clamp, const at::TensorOptions& options) {
  const auto wide = options.dtype(at::kDouble);
  at::Tensor distance = at::arange(count - 1, -1, -1, wide);
  if (clamp > 0) distance = distance.clamp_max(static_cast<double>(clamp));
  const at::Tensor frequencies = at::pow(10000.0, at::arange(0, dim, 2, wide) / -static_cast<double>(dim));
  const at::Tensor angles = distance.unsqueeze(1) * frequencies;
  return at::cat({angles.sin(), angles.cos()}, 1).to(at::kFloat);
}

int64_t relative_reach(int64_t keys, const Segments& segments, int64_t window) {
  if (segments.length > 0) keys = std::min(keys, segments.length + segments.memory);
  return window > 0 ? std::min(keys, window + kStrip - 1) : keys;
}

static void refuse_softcap(const RelativeInputs& in) {
  TORCH_CHECK(in.attention.softcap.value_or(0) == 0,
              "relative positions: expected attention without a softcap, received ", *in.attention.softcap);
}

std::pair<at::Tensor, at::Tensor> relative_attention(const RelativeInputs& in) {
  refuse_softcap(in);
  const int64_t queries = in.q.size(1), keys = in.k.size(1), end = in.first + keys, window = in.attention.window;
  std::vector<at::Tensor> outs, stats;
  for (int64_t a = end - queries, b = a; a < end; a = b) {
    const int64_t segment = std::max(in.segments.begin(a), in.first);
    b = std::min(end, a + kStrip);
    if (in.segments.length > 0) b = std::min(b, in.segments.begin(a) + in.segments.length);
    int64_t seen = std::max(in.segments.first_seen(a), in.first);
    if (window > 0) seen = std::max(seen, a - window + 1);
    const auto tokens = [&](const at::Tensor& own, const at::Tensor& past) {
      if (!past.defined() || seen >= segment) return own.narrow(1, seen - in.first, b - seen);
      return at::cat({past.narrow(1, seen - in.first, segment - seen), own.narrow(1, segment - in.first, b - segment)},
                     1);
    };
    Strip strip{in.attention};
    strip.options.sink = at::Tensor();  // run() receives the sink in `inputs` instead
    const std::vector<at::Tensor> inputs = {in.q.narrow(1, a - (end - queries), b - a),
                                            tokens(in.k, in.past_k),
                                            tokens(in.v, in.past_v),
                                            in.r.narrow(0, in.r.size(0) - (b - seen), b - seen),
                                            in.content_bias,
                                            in.position_bias,
                                            in.distance_bias,
                                            in.tau,
                                            in.attention.sink};
    const auto results =
        checkpoint_activations(inputs, [strip](const std::vector<at::Tensor>& tensors) { return strip.run(tensors); });
    outs.push_back(results[0]);
    if (!in.attention.return_stats) continue;
    stats.push_back(results[1]);
    // Statistic 0 is the weight of the first key of the text, which this block does not see.
    if (seen > 0) stats.back().select(0, 0).zero_();
  }
  return {outs.size() == 1 ? outs[0] : at::cat(outs, 1), stats.empty() ? at::Tensor() : at::cat(stats, 3)};
}

namespace {

// Properties of each pair (query, key), with the shape (queries, keys).
struct Pairs {
  at::Tensor distance;    // position of the query minus position of the key
  at::Tensor visible;     // true: the query attends to the key
  at::Tensor remembered;  // true: the key is in an earlier segment than the query
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

// Converts (batch, keys, kv_heads, head_dim) to (batch, heads, keys, head_dim): repeats each key-value head for its
// query heads.
at::Tensor to_heads(const at::Tensor& x, int64_t heads) {
  return x.transpose(1, 2).repeat_interleave(heads / x.size(2), 1);
}

}  // namespace

at::Tensor relative_scores(const RelativeInputs& in) {
  refuse_softcap(in);
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
  // Row known - 1 - d of in.r belongs to distance d. Keys at distances of `known` or more are masked.
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
