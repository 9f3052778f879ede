// What a server asks about the attention of a text's tokens. No Torch, as in generation.h.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "serve/generation.h"

namespace lazy {

// A head, or the mean over heads: -1 stands for all layers, or all heads of the layer.
struct HeadChoice {
  int64_t layer = -1, head = -1;
};

struct AttentionRequest {
  std::vector<int64_t> tokens;   // ids of the text; at least one
  int64_t first = 0;             // the tokens from here on are reported
  std::vector<HeadChoice> rows;  // whose weights of the last token are wanted
};

struct AttentionReport {
  // Of each reported token as the query, each layer and head, in this order; NaN in layers without attention.
  std::vector<float> released;  // 1 - sum of the weights
  std::vector<float> sink;      // weight on the first key
  std::vector<float> alive;     // keys whose weight is above zero
  // The last token's weights on all tokens, for each of the request's rows; nothing for a layer without attention.
  std::vector<std::vector<float>> rows;
};

struct AttentionResult {
  FinishReason reason = FinishReason::stop;  // stop, cancelled or failed
  std::string message;                       // why, for `failed`
  AttentionReport report;
};

// All members are thread-safe.
class AttentionService {
 public:
  struct Shape {
    int64_t layers = 0, heads = 0;
    int64_t max_tokens = 0;  // of a request
  };

  virtual ~AttentionService() = default;
  virtual Shape shape() const = 0;
  // The request must fit the shape and the vocabulary. `done` is called once by the engine's thread, and must return
  // soon; not at all where the request is refused.
  virtual GenerationService::Submission read(AttentionRequest request, std::function<void(AttentionResult)> done) = 0;
  virtual void cancel(GenerationService::Id id) = 0;  // if it has not begun
};

}  // namespace lazy
