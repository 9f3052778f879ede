// The rows of K and V that a decode step needs: every visible row of K, and the rows of V with a weight above zero.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/activation_hooks.h"
#include "model/language_model.h"

namespace lazy::sinks {

// Counts the rows of V that decode steps need. The query heads of a group share a key-value head (grouped-query
// attention), so a decode step needs a row of V if its weight is above zero in at least one query head of the group.
// The last queries of every sample are measured, because a decode step after a text of this length has one such query.
class DecodeReads {
 public:
  // `model` must outlive this object. `queries` is the maximum number of last queries per sample.
  explicit DecodeReads(const LanguageModel& model, int64_t queries = 32);
  // Adds hooks that measure a forward pass. Requires a model whose attention weights are computed from q and k only
  // (not Transformer-XL).
  void attach(ActivationHooks& probes);

  struct Result {
    int64_t length = 0, queries = 0;  // tokens per sample; measured queries per sample
    std::vector<double> alive;        // [layer]: fraction of visible (query, key) pairs with a weight above zero
    std::vector<double>
        // [layer]: fraction of the visible rows of V whose weight is above zero in at least one query head of their
        // group.
        alive_in_group;
    // Bytes of K and V per decoded token over all layers, in the data type of K. visible_bytes: all visible rows of K
    // and V. alive_bytes: all visible rows of K, and the rows of V with a weight above zero.
    double visible_bytes = 0, alive_bytes = 0;
  };
  bool empty() const { return samples_ == 0; }
  Result result() const;  // throws Error if nothing was measured

 private:
  struct ReadCounts {
    // pairs: number of visible (query head, query, key) triples. alive: number of these triples with a weight above
    // zero.
    double pairs = 0, alive = 0;
    // rows: number of visible (key-value head, query, key) triples. alive_in_group: number of these triples for which
    // the row of V is needed.
    double rows = 0, alive_in_group = 0;
    double row_bytes = 0;  // bytes of one row of K or V
  };
  void measure(int64_t layer, const at::Tensor& q, const at::Tensor& k);

  const LanguageModel& model_;
  int64_t max_queries_;
  std::vector<ReadCounts> layers_;
  int64_t length_ = 0, queries_ = 0, samples_ = 0;
  at::Tensor q_;
};

}  // namespace lazy::sinks
