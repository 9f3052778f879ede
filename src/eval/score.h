// The one place that asks the model: log-likelihoods of windows, laid end to end without padding.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/request.h"
#include "eval/windows.h"
#include "model/language_model.h"

namespace lazy::train {
class Communicator;
}

namespace lazy::eval {

struct TargetScore {
  float log_likelihood = 0;
  bool greedy = false;
};

struct Score {
  double log_likelihood = 0;         // nats, summed over the targets in float64
  bool greedy = true;                // every target was the most likely token (of equals, the first)
  std::vector<TargetScore> targets;  // one a target; empty unless ScoreOptions::targets
};

struct ScoreOptions {
  int64_t batch_size = 0;                // windows a batch; 0: as many as fill the processor, fewer where memory ends
  std::string title = "evaluating";      // of the progress bar; empty: none
  std::optional<StreamingCache> cache;   // every window through a cache that keeps so many tokens; none: all of them
  bool targets = false;                  // keep the score of every target: losses by position, words inside a stream
  train::Communicator* ranks = nullptr;  // share the windows; each passes all of them and gets all scores
};

// One score a window, in the order given; what neighbours share at their beginning is computed once. Equal results in
// any batch size up to the rounding of the products. Error on an id outside the vocabulary.
std::vector<Score> score(LanguageModel& model, const std::vector<Window>& windows, const ScoreOptions& options);
// The same for questions; longer ones are cut as window_of says.
std::vector<Score> score(LanguageModel& model, const std::vector<Request>& requests, int64_t max_length,
                         const ScoreOptions& options);

}  // namespace lazy::eval
