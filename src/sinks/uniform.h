// The sink ratio that uniform rows would give: what a measured one is compared with.
//
// The sink ratio is a mean over queries i = 1, ..., T, the first included, of the weight on the first key. A row whose
// scores are all equal has softmax weights 1 / i. Its weight on the first key is then
//
//   softmax, sparsemax, entmax15     1 / i                     mean: H_T / T, H_T = 1 + 1/2 + ... + 1/T
//   elastic, offset tau / i          max(0, 1 + tau) / i       mean: max(0, 1 + tau) H_T / T; 0 at tau = -1
//   elastic, constant offset tau     max(0, 1 / i + tau)       mean over i; for tau < 0 only i < -1 / tau count
//   softmax_sink, sigmoid, softpick  w_i / i                   mean over i
//
// The weights of the last three depend on the scores' level. It is taken from the measured row: w_i is its total
// weight, 1 - released mass, which the uniform row spreads evenly over its keys.
//
// Excess sink is the measured ratio minus this.
#pragma once
#include <cstdint>

#include "model/config.h"
#include "model/language_model.h"
#include "sinks/measures.h"

namespace lazy::sinks {

// Error for a normalizer whose weights of equal scores depend on the scores' level.
double uniform_sink_ratio(Normalizer normalizer, OffsetKind offset, double tau, int64_t length);
// Of every layer and head, with the model's own offsets. Error for a sliding window, whose later queries do not see the
// first key.
HeadMatrix uniform_sink_ratios(const LanguageModel& model, int64_t length);

// The uniform rows of passes of one length, for every normalizer.
class UniformRows {
 public:
  explicit UniformRows(const LanguageModel& model) : model_(model) {}
  // False with a sliding window or segments, where later queries do not see the first key.
  static bool serves(const ModelConfig& config);
  // `stats`: ForwardResult::stats of a pass without a cache, per layer (3, batch, heads, length).
  void add(const std::vector<at::Tensor>& stats);
  // Of every layer and head, with the model's own offsets. Error when nothing was added.
  HeadMatrix result() const;
  // What the sink ratio is stated above: the mean of result(), and 0 for an offset tau / i, whose start at tau = -1
  // takes all weight from a uniform row.
  double stated() const;

 private:
  const LanguageModel& model_;
  int64_t length_ = 0, samples_ = 0;
  HeadMatrix even_;  // sums over samples of the mean of w_i / i
};

}  // namespace lazy::sinks
