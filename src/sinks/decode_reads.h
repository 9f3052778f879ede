// The rows of K and V that a decode step needs: every visible row of K, and the rows of V with a weight above zero.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/activation_hooks.h"
#include "model/language_model.h"

namespace lazy::sinks {

// The queries of a group share a key-value head (grouped-query attention), so the step needs a row of V if it is alive
// for at least one query head of the group. The last queries of every sample are measured: a decode step after a text
// of the sample's length has one such query.
class DecodeReads {
 public:
  // `model` must outlive this. queries: maximum number of last queries per sample.
  explicit DecodeReads(const LanguageModel& model, int64_t queries = 32);
  // For models whose weights follow from q and k (not Transformer-XL).
  void attach(ActivationHooks& probes);

  struct Result {
    int64_t length = 0, queries = 0;     // tokens per sample, measured queries per sample
    std::vector<double> alive;           // [layer]: share of visible (query, key) pairs with a weight above zero
    std::vector<double> alive_in_group;  // [layer]: share of visible keys that are alive for some query head of a group
    // Bytes of K and V per decoded token, over all layers, in the data type of K: of all visible rows, and of the
    // visible rows of K and the living rows of V.
    double visible_bytes = 0, alive_bytes = 0;
  };
  bool empty() const { return samples_ == 0; }
  Result result() const;  // Error when nothing was measured

 private:
  struct Sums {
    double pairs = 0, alive = 0;          // (query head, query, key), visible
    double rows = 0, alive_in_group = 0;  // (key head, query, key), visible
    double row_bytes = 0;                 // of one row of K; V's rows have the same size
  };
  void measure(int64_t layer, const at::Tensor& q, const at::Tensor& k);

  const LanguageModel& model_;
  int64_t max_queries_;
  std::vector<Sums> layers_;
  int64_t length_ = 0, queries_ = 0, samples_ = 0;
  at::Tensor q_;
};

}  // namespace lazy::sinks
