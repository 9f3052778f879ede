// Dimension suffixes: B batch, L queries of a block, K keys of a block, G key-value heads, R query heads per key-value
// head, H = G R query heads, D head_dim.
#include "model/mixers/streaming.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/attention_weights.h"
#include "ops/decode.h"
#include "ops/rope.h"

namespace lazy {
namespace {

// Number of queries per block. All queries of a block are computed with one matrix of scores, which has columns for the
// sink tokens and cache.recent + kBlock more columns, of which each query uses cache.recent + 1.
constexpr int64_t kBlock = 128;

at::Tensor turned(const at::Tensor& x, const Rope& rope, int64_t offset, const at::Tensor& positions = {}) {
  if (rope.base == 0 || x.size(1) == 0) return x;  // the model has no RoPE, or x is empty
  return ops::rope(x, rope.base, offset,
                   {.rotary_dim = rope.rotary_dim,
                    .interleaved = rope.interleaved,
                    .scaling = rope.scaling,
                    .positions = positions});
}

// Ordinary attention for sequences whose tokens are all still in the cache, so that positions in the cache equal
// positions in the text.
at::Tensor uncut(const StreamingInputs& in, const at::Tensor& q_BLHD, const at::Tensor& k, const at::Tensor& v) {
  const int64_t batch = q_BLHD.size(0), length = q_BLHD.size(1), keys = k.size(1);
  const at::Tensor q = turned(q_BLHD, in.rope, keys - length), rotated = turned(k, in.rope, 0);
  if (length > ops::kMaxDecodeRows)
    return std::get<0>(ops::attention(q, rotated, v, in.distance_bias, in.tau, in.attention));
  const at::Tensor lengths = at::full({batch}, keys, at::TensorOptions().dtype(at::kLong).device(k.device()));
  return std::get<0>(ops::decode(q, rotated, v, lengths, in.distance_bias, in.tau, in.attention));
}

// Computes one weight matrix per block of queries. Its columns are the sink tokens (the first tokens of the text, which
// the cache always retains) and the recent tokens of all queries in the block.
class BlockedForm {
 public:
  BlockedForm(const StreamingInputs& in, const StreamingCache& cache) : in_(in), cache_(cache) {
    const auto whole = at::TensorOptions().dtype(at::kLong).device(in.q.device());
    const at::Tensor row = at::arange(kBlock, whole).unsqueeze(1);
    // Distances between queries (rows) and keys (columns). For sink tokens, the distance is measured within a full
    // cache; for recent tokens, it is measured in the text.
    const at::Tensor to_sinks = (cache.size() - at::arange(cache.sinks, whole)).expand({kBlock, cache.sinks});
    const at::Tensor to_recent = row + cache.recent - at::arange(cache.recent + kBlock, whole);
    const at::Tensor distance = at::cat({to_sinks, to_recent}, 1);
    visible_ = at::cat({at::ones_like(to_sinks, at::kBool), to_recent.ge(0) & to_recent.le(cache.recent)}, 1);
    if (in.attention.window > 0) visible_ = visible_ & distance.lt(in.attention.window);
    // All queries see the same number of keys.
    count_ = at::scalar_tensor(visible_.select(0, 0).sum().item<double>(), at::kDouble);
    added_ = at::zeros({1, kBlock, distance.size(1)}, whole.dtype(at::kFloat));
    if (in.distance_bias.defined()) {
      const int64_t width = in.distance_bias.size(1);
      const at::Tensor reached = distance.ge(0) & distance.lt(width);
      added_ = in.distance_bias.to(at::kFloat).index_select(1, distance.clamp(0, width - 1).reshape({-1}));
      added_ = added_.view({-1, kBlock, distance.size(1)}) * reached;
    }
    added_ = added_.masked_fill(visible_.logical_not(), -INFINITY);
  }

  static bool serves(const std::string& normalizer) {
    return normalizer == "softmax" || normalizer == "elastic" || normalizer == "sigmoid";
  }

  // Returns the outputs of the queries; query n belongs to token first + n of in_.k. `first` must exceed the size of
  // the cache.
  at::Tensor run(const at::Tensor& q_BLHD, int64_t first) const {
    const int64_t length = q_BLHD.size(1);
    const auto whole = at::TensorOptions().dtype(at::kLong).device(q_BLHD.device());
    const at::Tensor q = turned(q_BLHD, in_.rope, first), k = turned(in_.k, in_.rope, 0);
    const at::Tensor q_last = turned(q_BLHD, in_.rope, 0, at::full({length}, cache_.size(), whole));
    const at::Tensor out = at::empty_like(q);
    for (int64_t begin = 0; begin < length; begin += kBlock) {
      const int64_t rows = std::min(kBlock, length - begin), from = first + begin - cache_.recent,
                    recent = cache_.recent + rows;
      const at::Tensor to_sinks = scores(q_last.narrow(1, begin, rows), k.narrow(1, 0, cache_.sinks));
      const at::Tensor to_recent = scores(q.narrow(1, begin, rows), k.narrow(1, from, recent));
      at::Tensor s_BHLK = ops::soft_capped(at::cat({to_sinks, to_recent}, 3), in_.attention);
      const int64_t keys = s_BHLK.size(3);
      s_BHLK.add_(added_.narrow(1, 0, rows).narrow(2, 0, keys));
      const at::Tensor w_BHLK =
          ops::block_weights(s_BHLK, visible_.narrow(0, 0, rows).narrow(1, 0, keys), count_, in_.tau, in_.attention);
      const at::Tensor v_BKGD = at::cat({in_.v.narrow(1, 0, cache_.sinks), in_.v.narrow(1, from, recent)}, 1);
      out.narrow(1, begin, rows).copy_(mix(w_BHLK, v_BKGD));
    }
    return out;
  }

 private:
  // Returns the scaled scores (batch, heads, rows, keys) in fp32.
  static at::Tensor scores(const at::Tensor& q_BLHD, const at::Tensor& k_BKGD) {
    const int64_t B = q_BLHD.size(0), L = q_BLHD.size(1), H = q_BLHD.size(2), D = q_BLHD.size(3), G = k_BKGD.size(2);
    const at::Tensor q_BGRLD = q_BLHD.to(at::kFloat).view({B, L, G, H / G, D}).permute({0, 2, 3, 1, 4});
    const at::Tensor q = q_BGRLD.reshape({B, G, H / G * L, D}) / std::sqrt(static_cast<double>(D));
    return at::matmul(q, k_BKGD.to(at::kFloat).permute({0, 2, 3, 1})).view({B, H, L, k_BKGD.size(1)});
  }

  static at::Tensor mix(const at::Tensor& w_BHLK, const at::Tensor& v_BKGD) {
    const int64_t B = w_BHLK.size(0), H = w_BHLK.size(1), L = w_BHLK.size(2), K = w_BHLK.size(3), G = v_BKGD.size(2),
                  D = v_BKGD.size(3);
    const at::Tensor w = w_BHLK.view({B, G, H / G * L, K});
    return at::matmul(w, v_BKGD.to(at::kFloat).permute({0, 2, 1, 3})).view({B, H, L, D}).transpose(1, 2);
  }

  const StreamingInputs& in_;
  StreamingCache cache_;
  // visible_ (kBlock, sinks + recent + kBlock) is true where the query (row) sees the key (column). added_ (1 or heads,
  // kBlock, sinks + recent + kBlock) is added to the scores: the distance bias, or -infinity for keys that are not
  // visible.
  at::Tensor visible_, added_;
  at::Tensor count_;  // number of visible keys of each query, a scalar
};

// Computes one token at a time. Each token attends to the keys that the cache contains when the token arrives.
at::Tensor one_by_one(const StreamingInputs& in, const StreamingCache& cache, const at::Tensor& q_BLHD, int64_t first) {
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < q_BLHD.size(1); ++t) {
    const auto seen = [&](const at::Tensor& x) {
      return at::cat({x.narrow(1, 0, cache.sinks), x.narrow(1, first + t - cache.recent, cache.recent + 1)}, 1);
    };
    out.push_back(uncut(in, q_BLHD.narrow(1, t, 1), seen(in.k), seen(in.v)));
  }
  return at::cat(out, 1);
}

}  // namespace

at::Tensor streaming_attention(const StreamingInputs& in, const StreamingCache& cache) {
  const int64_t length = in.q.size(1), before = in.k.size(1) - length;
  // `early` is the number of new tokens that fit into the cache together with all earlier tokens.
  const int64_t early = std::clamp<int64_t>(cache.size() + 1 - before, 0, length), later = length - early;
  std::vector<at::Tensor> out;
  if (early > 0) {
    out.push_back(
        uncut(in, in.q.narrow(1, 0, early), in.k.narrow(1, 0, before + early), in.v.narrow(1, 0, before + early)));
  }
  if (later > 0) {
    const at::Tensor q = in.q.narrow(1, early, later);
    const bool blocked = BlockedForm::serves(in.attention.normalizer);
    out.push_back(blocked ? BlockedForm(in, cache).run(q, before + early) : one_by_one(in, cache, q, before + early));
  }
  return out.size() == 1 ? out[0] : at::cat(out, 1);
}

namespace {

// Returns the total weight that the queries give to each key, per key-value head. Input (batch, heads, queries, keys),
// output (batch, keys, kv_heads).
at::Tensor received_from(const at::Tensor& w_BHLK, int64_t kv_heads) {
  return w_BHLK.abs().unflatten(1, {kv_heads, -1}).sum({2, 3}).transpose(1, 2);
}

// Returns x (batch, tokens, kv_heads, ...) without one token per sequence and key-value head. `gone` (batch, kv_heads)
// contains the index of this token.
at::Tensor without(const at::Tensor& x, const at::Tensor& gone) {
  const at::Tensor left = at::arange(x.size(1) - 1, gone.options()).view({1, -1, 1});
  at::Tensor from = left + left.ge(gone.unsqueeze(1));
  if (x.dim() == 4) from = from.unsqueeze(3).expand({-1, -1, -1, x.size(3)});
  return x.gather(1, from);
}

}  // namespace

at::Tensor heaviest_attention(StreamingInputs& in, at::Tensor& received, const StreamingCache& cache) {
  const int64_t length = in.q.size(1), kv_heads = in.k.size(2), before = in.k.size(1) - length;
  const ops::AttentionTerms terms{in.attention, in.distance_bias, in.tau};
  const at::Tensor all_k = in.k, all_v = in.v;
  at::Tensor k = all_k.narrow(1, 0, before), v = all_v.narrow(1, 0, before), sums = received;
  if (!sums.defined()) sums = at::zeros({k.size(0), 0, kv_heads}, k.options().dtype(at::kFloat));
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < length;) {
    // Tokens that fit into the cache are processed together, later tokens one at a time.
    const int64_t rows = std::min(length - t, std::max<int64_t>(1, cache.size() - k.size(1)));
    k = at::cat({k, all_k.narrow(1, before + t, rows)}, 1);
    v = at::cat({v, all_v.narrow(1, before + t, rows)}, 1);
    const int64_t first = k.size(1) - rows;
    const at::Tensor q = turned(in.q.narrow(1, t, rows), in.rope, first);
    const at::Tensor w_BHLK =
        ops::normalized_weights(ops::attention_scores(q, turned(k, in.rope, 0), terms, first), terms);
    if (ops::ValueRowCount* count = ops::ValueRowCount::current())
      count->add(w_BHLK.ne(0).unflatten(1, {kv_heads, -1}).any(3).any(2).sum().item<int64_t>());
    out.push_back(ops::weighted_values(w_BHLK, v).to(in.q.scalar_type()));
    sums = received_from(w_BHLK, kv_heads) + at::constant_pad_nd(sums, {0, 0, 0, rows});
    if (k.size(1) > cache.size()) {
      const at::Tensor lightest = sums.narrow(1, 0, cache.heavy + 1).argmin(1);
      k = without(k, lightest);
      v = without(v, lightest);
      sums = without(sums, lightest);
    }
    t += rows;
  }
  in.k = k;
  in.v = v;
  received = sums;
  return at::cat(out, 1);
}

at::Tensor apply_streaming_window(const at::Tensor& tokens, const StreamingCache& cache) {
  if (tokens.size(1) <= cache.size()) return tokens;
  return at::cat({tokens.narrow(1, 0, cache.sinks), tokens.narrow(1, tokens.size(1) - cache.recent, cache.recent)}, 1);
}

}  // namespace lazy
