// POST /v1/attention, an extension of OpenAI's API: attention statistics and weights of a model's heads for given
// tokens.
#pragma once
#include <functional>
#include <memory>

#include "serve/attention_service.h"
#include "serve/http/exchange.h"
#include "serve/openai/served_model.h"

namespace lazy::serve {

inline constexpr int64_t kMaxAttentionNumbers = int64_t{1} << 20;  // maximum number of values per response: about 7 MB

// Submits the request to the engine and responds through `exchange` when the result is available. `on_done` is called
// exactly once with the status. Throws ApiError if the request does not fit the model or is refused. Must be called on
// the strand.
void start_attention(std::shared_ptr<const ServedModel> model, AttentionRequest request,
                     const std::shared_ptr<Exchange>& exchange, std::function<void(int)> on_done);

}  // namespace lazy::serve
