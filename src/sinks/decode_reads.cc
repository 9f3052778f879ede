#include "sinks/decode_reads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "ops/attention_weights.h"
#include "sinks/probe_measures.h"

namespace lazy::sinks {

DecodeReads::DecodeReads(const LanguageModel& model, int64_t queries)
    : model_(model), max_queries_(queries), layers_(static_cast<size_t>(model.config().num_layers)) {}

void DecodeReads::attach(ActivationHooks& probes) {
  probes.read("layers.*.attention.q", [this](const std::string&, const at::Tensor& q) { q_ = q; });
  probes.read("layers.*.attention.k", [this](const std::string& name, const at::Tensor& k) {
    measure(layer_of(name), q_, k);
    q_ = at::Tensor();
  });
}

void DecodeReads::measure(int64_t layer, const at::Tensor& q, const at::Tensor& k) {
  const at::NoGradGuard no_grad;
  const int64_t length = q.size(1), queries = std::min(max_queries_, length), first = length - queries;
  if (samples_ > 0 && length != length_)
    fail("sinks", "all samples that are measured together must have the same length, found two different lengths");
  const ops::AttentionTerms terms = model_.attention_terms(layer);
  const at::Tensor scores_BHQK = ops::attention_scores(q.narrow(1, first, queries), k, terms, first);
  const at::Tensor visible_BHQK = scores_BHQK.ne(-std::numeric_limits<float>::infinity());
  const at::Tensor alive_BHQK = ops::normalized_weights(scores_BHQK, terms).gt(0).logical_and_(visible_BHQK);
  const int64_t group = q.size(2) / k.size(2);
  const auto count = [](const at::Tensor& t) { return t.sum(at::kDouble).item<double>(); };
  const auto in_group = [&](const at::Tensor& t) { return t.unflatten(1, {k.size(2), group}).any(2); };
  ReadCounts& sums = layers_.at(static_cast<size_t>(layer));
  sums.pairs += count(visible_BHQK);
  sums.alive += count(alive_BHQK);
  sums.rows += count(in_group(visible_BHQK));
  sums.alive_in_group += count(in_group(alive_BHQK));
  sums.row_bytes = static_cast<double>(k.size(3)) * static_cast<double>(k.element_size());
  if (layer == 0) samples_ += q.size(0);
  length_ = length, queries_ = queries;
}

DecodeReads::Result DecodeReads::result() const {
  if (empty()) fail("sinks", "no samples were measured");
  Result out{.length = length_, .queries = queries_};
  const auto steps = static_cast<double>(samples_ * queries_);
  for (const ReadCounts& sums : layers_) {
    out.alive.push_back(sums.alive / sums.pairs);
    out.alive_in_group.push_back(sums.alive_in_group / sums.rows);
    out.visible_bytes += 2 * sums.rows / steps * sums.row_bytes;
    out.alive_bytes += (sums.rows + sums.alive_in_group) / steps * sums.row_bytes;
  }
  return out;
}

}  // namespace lazy::sinks
