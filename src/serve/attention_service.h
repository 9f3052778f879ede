// Interface through which the HTTP server requests the attention weights of a token sequence. It does not depend on
// Torch, like generation.h.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "serve/generation.h"

namespace lazy {

// Selects one attention head, or the mean over several heads. layer -1 selects all layers; head -1 selects all heads of
// the selected layers.
struct HeadChoice {
  int64_t layer = -1, head = -1;
};

struct AttentionRequest {
  std::vector<int64_t> tokens;   // token ids of the sequence; at least one
  int64_t first = 0;             // index of the first token for which statistics are reported
  std::vector<HeadChoice> rows;  // heads whose attention weights for the last token are returned
};

struct AttentionReport {
  // Statistics with shape (tokens, layers, heads), with each reported token as the query. They are NaN for layers
  // without attention.
  std::vector<float> released;  // 1 - sum of the attention weights
  std::vector<float> sink;      // attention weight on the first key
  std::vector<float> alive;     // number of keys whose attention weight is above zero
  // For each entry of AttentionRequest::rows: the attention weights of the last token (as the query) on all tokens. The
  // vector is empty if the selected layer has no attention.
  std::vector<std::vector<float>> rows;
};

struct AttentionResult {
  FinishReason reason = FinishReason::stop;  // stop (success), cancelled or failed
  std::string message;                       // error message, if the reason is `failed`
  AttentionReport report;
};

// All member functions are thread-safe.
class AttentionService {
 public:
  struct Shape {
    int64_t layers = 0, heads = 0;
    int64_t max_tokens = 0;  // maximum number of tokens per request
  };

  virtual ~AttentionService() = default;
  virtual Shape shape() const = 0;
  // The request must be valid for shape() and for the model's vocabulary. The engine's thread calls `done` exactly
  // once; `done` must return quickly. It is not called if the request is refused.
  virtual GenerationService::Submission read(AttentionRequest request, std::function<void(AttentionResult)> done) = 0;
  virtual void cancel(GenerationService::Id id) = 0;  // cancels the request if its computation has not started
};

}  // namespace lazy
