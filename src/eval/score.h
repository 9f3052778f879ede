// The one place that asks the model: log-likelihoods of windows, batched by length.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/request.h"
#include "eval/windows.h"
#include "model/language_model.h"

namespace lazy::eval {

struct Score {
  double log_likelihood = 0;  // nats, summed over the targets in float64
  bool greedy = true;         // every target was the most likely token (of equals, the first)
};

struct ScoreOptions {
  int64_t batch_size = 8;            // windows a batch
  std::optional<StreamingCache> cache;  // every window through a cache that keeps so many tokens; none: all of them
  std::string title = "evaluating";  // of the progress bar; empty: none
};

// One score a window, in the order given. Windows are sorted by length, so that little is padded; equal results in any
// batch size up to the rounding of the products. Error on an id outside the vocabulary.
std::vector<Score> score(LanguageModel& model, const std::vector<Window>& windows, const ScoreOptions& options);
// The same for questions; longer ones are cut as window_of says.
std::vector<Score> score(LanguageModel& model, const std::vector<Request>& requests, int64_t max_length, const ScoreOptions& options);

}  // namespace lazy::eval
