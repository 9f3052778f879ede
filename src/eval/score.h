// Log-likelihoods of token windows under a model: batching, ranks, streaming caches and progress.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "eval/requests.h"
#include "model/streaming_cache.h"

namespace lazy {
class LanguageModel;
}
namespace lazy::distributed {
class Communicator;
}

namespace lazy::eval {

struct TargetScore {
  float log_likelihood = 0;
  bool greedy = false;  // the target was the most likely token
};

struct Score {
  double log_likelihood = 0;         // nats, summed over the targets in float64
  bool greedy = true;                // every target was the most likely token (of equals, the first)
  std::vector<TargetScore> targets;  // one a target; empty unless ScoreOptions::targets
};

struct ScoreOptions {
  int64_t batch_size = 0;               // windows a batch; 0: as many as keep the device busy and fit its memory
  std::string title = "evaluating";     // of the progress bar; empty: none
  std::optional<StreamingCache> cache;  // score every window through this streaming KV cache; none: full attention
  bool targets = false;                 // also return the score of every target
  // Compute a prefix that neighbouring windows share once. Off for windows that share BOS alone: they would form one
  // batch.
  bool share_prefixes = true;
  distributed::Communicator* ranks = nullptr;  // divide the windows; each rank passes all of them and gets all scores
};

// One score a window, in the order given. Results do not depend on the batch size up to the rounding of the matrix
// products. Error on an id outside the vocabulary.
std::vector<Score> score(LanguageModel& model, const std::vector<Window>& windows, const ScoreOptions& options);
// The same for requests, which are truncated as window_of does.
std::vector<Score> score(LanguageModel& model, const std::vector<Request>& requests, int64_t max_length,
                         const ScoreOptions& options);

// A model bound to its options: windows and a progress title to scores of every target. A function, so that tests can
// replace the model by a rule with known results.
using Scorer = std::function<std::vector<Score>(const std::vector<Window>& windows, const std::string& title)>;
// The function keeps `model` alive.
Scorer make_scorer(std::shared_ptr<LanguageModel> model, ScoreOptions options, bool progress);

}  // namespace lazy::eval
