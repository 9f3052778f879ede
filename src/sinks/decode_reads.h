// The rows of K and V that a decode step needs: every visible row of K, and the rows of V with a weight above zero.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/activation_hooks.h"
#include "model/language_model.h"

namespace lazy::sinks {

// The query heads of a group share a key-value head (grouped-query attention). A decode step therefore needs a row of V
// if the row has a weight above zero (is alive) for at least one query head of the group. The last queries of every
// sample are measured: a decode step after a text of this length has one such query.
class DecodeReads {
 public:
  // `model` must outlive this object. `queries` is the maximum number of last queries per sample.
  explicit DecodeReads(const LanguageModel& model, int64_t queries = 32);
  // Requires a model whose attention weights are computed from q and k only (not Transformer-XL).
  void attach(ActivationHooks& probes);

  struct Result {
    int64_t length = 0, queries = 0;  // tokens per sample; measured queries per sample
    std::vector<double> alive;        // [layer]: fraction of visible (query, key) pairs with a weight above zero
    std::vector<double>
        alive_in_group;  // [layer]: fraction of visible rows of V that are alive for a query head of their group
    // Bytes of K and V per decoded token over all layers, in the data type of K. visible_bytes: all visible rows of K
    // and V. alive_bytes: all visible rows of K and the alive rows of V.
    double visible_bytes = 0, alive_bytes = 0;
  };
  bool empty() const { return samples_ == 0; }
  Result result() const;  // throws Error if nothing was measured

 private:
  struct ReadCounts {
    double pairs = 0, alive = 0;          // number of visible (query head, query, key)
    double rows = 0, alive_in_group = 0;  // number of visible (key head, query, key)
    double row_bytes = 0;                 // bytes of one row of K or V
  };
  void measure(int64_t layer, const at::Tensor& q, const at::Tensor& k);

  const LanguageModel& model_;
  int64_t max_queries_;
  std::vector<ReadCounts> layers_;
  int64_t length_ = 0, queries_ = 0, samples_ = 0;
  at::Tensor q_;
};

}  // namespace lazy::sinks
