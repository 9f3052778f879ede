// The sink ratio that uniform rows would give: what a measured one is compared with.
//
// The sink ratio is a mean over queries i = 1, ..., T, the first included, of the weight on the first key. A row whose
// scores are all equal has softmax weights 1 / i. Its weight on the first key is then
//
//   softmax, sparsemax, entmax15     1 / i                     mean: H_T / T, H_T = 1 + 1/2 + ... + 1/T
//   elastic, offset tau / i          max(0, 1 + tau) / i       mean: max(0, 1 + tau) H_T / T; 0 at tau = -1
//   elastic, constant offset tau     max(0, 1 / i + tau)       mean over i; for tau < 0 only i < -1 / tau count
//
// Excess sink is the measured ratio minus this.
#pragma once
#include <cstdint>

#include "model/config.h"
#include "model/language_model.h"
#include "sinks/measures.h"

namespace lazy::sinks {

// Error for a normalizer whose weights of equal scores depend on the scores' level (softmax_sink, sigmoid, softpick).
double uniform_sink_ratio(Normalizer normalizer, OffsetKind offset, double tau, int64_t length);
// Of every layer and head, with the model's own offsets. Error for a sliding window, whose later queries do not see the
// first key.
HeadMatrix uniform_sink_ratios(const LanguageModel& model, int64_t length);

}  // namespace lazy::sinks
