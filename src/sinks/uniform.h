// The sink ratio of uniform attention rows (rows with equal scores), which is the baseline for a measured sink ratio.
//
// The sink ratio is the mean over queries i = 1, ..., T (including the first) of the weight on the first key. A row
// with equal scores has softmax weights 1 / i. Its weight on the first key is:
//
//   softmax, sparsemax, entmax15     1 / i                     mean: H_T / T, H_T = 1 + 1/2 + ... + 1/T
//   elastic, offset tau / i          max(0, 1 + tau) / i       mean: max(0, 1 + tau) H_T / T; 0 at tau = -1
//   elastic, constant offset tau     max(0, 1 / i + tau)       mean over i; for tau < 0 only i < -1 / tau count
//   elastic_sink, softmax_sink,
//   sigmoid, softpick                w_i / i                   mean over i
//
// For the last four normalizers the weights depend on the value of the scores. In this case w_i is the total
// weight of the measured row, 1 - released mass, and the uniform row spreads w_i evenly over its keys.
//
// The excess sink is the measured ratio minus this baseline.
#pragma once
#include <cstdint>

#include "model/config.h"
#include "model/language_model.h"
#include "sinks/measures.h"

namespace lazy::sinks {

// Returns the sink ratio of rows with equal scores for one offset `tau` and `length` queries. Throws Error for a
// normalizer whose weights depend on the value of the equal scores.
double uniform_sink_ratio(Normalizer normalizer, OffsetKind offset, double tau, int64_t length);
// Returns this sink ratio for every layer and head, using the offsets of the model. Throws Error for a model with a
// sliding window, because later queries then do not see the first key.
HeadMatrix uniform_sink_ratios(const LanguageModel& model, int64_t length);

// Computes the sink ratios of uniform attention rows for passes of one length, for every normalizer.
class UniformRows {
 public:
  explicit UniformRows(const LanguageModel& model) : model_(model) {}
  // Returns false for models with a sliding window or segments, because later queries do not see the first key in these
  // models.
  static bool serves(const ModelConfig& config);
  // Adds the statistics of one pass without a cache. `stats` is ForwardResult::stats: for each layer a tensor (3,
  // batch, heads, length).
  void add(const std::vector<at::Tensor>& stats);
  // Returns the ratio for every layer and head, using the offsets of the model. Throws Error if nothing was added.
  HeadMatrix result() const;
  // Returns the baseline with which a reported sink ratio is compared. It is 0 for an offset tau / i, because the
  // initial value tau = -1 removes all weight from a uniform row. Otherwise it is the mean of result().
  double stated() const;

 private:
  const LanguageModel& model_;
  int64_t length_ = 0, samples_ = 0;
  HeadMatrix even_;  // sums over samples of the mean of w_i / i, where w_i is the total weight of row i
};

}  // namespace lazy::sinks
