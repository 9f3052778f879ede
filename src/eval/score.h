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
  bool greedy = false;  // whether the target was the most likely token
};

struct Score {
  double log_likelihood = 0;         // in nats, summed over the targets in float64
  bool greedy = true;                // whether every target was the most likely token; the first token wins ties
  std::vector<TargetScore> targets;  // one entry per target; empty unless ScoreOptions::targets is set
};

struct ScoreOptions {
  int64_t batch_size = 0;  // windows per batch; 0: as many as needed to fully use the device, limited by its memory
  std::string title = "evaluating";  // title of the progress bar; empty: no progress bar
  // if set, score every window through this streaming KV cache; otherwise use full attention
  std::optional<StreamingCache> cache;
  bool targets = false;  // whether to fill Score::targets
  // Whether a prefix that adjacent windows have in common is computed only once. Must be false for windows that have
  // only BOS in common, because they would all form one group and therefore one batch.
  bool share_prefixes = true;
  // the ranks among which the windows are divided: each rank passes all windows and receives all scores
  distributed::Communicator* ranks = nullptr;
};

// Returns one score per window, in the order of `windows`. Results do not depend on the batch size, except for rounding
// in the matrix products. Throws Error for an id outside of the vocabulary.
std::vector<Score> score(LanguageModel& model, const std::vector<Window>& windows, const ScoreOptions& options);
// Scores requests, which are truncated by window_of.
std::vector<Score> score(LanguageModel& model, const std::vector<Request>& requests, int64_t max_length,
                         const ScoreOptions& options);

// A function that maps windows and a progress title to the scores of every target, with a fixed model and options. It
// is a function type so that tests can replace the model by a rule with known results.
using Scorer = std::function<std::vector<Score>(const std::vector<Window>& windows, const std::string& title)>;
// Returns a Scorer for the model. The function owns a reference to `model`.
Scorer make_scorer(std::shared_ptr<LanguageModel> model, ScoreOptions options, bool progress);

}  // namespace lazy::eval
