// POST /v1/attention, an extension of the protocol: what the heads of a model do at a text's tokens.
#pragma once
#include <functional>
#include <memory>

#include "serve/attention_service.h"
#include "serve/http/exchange.h"
#include "serve/openai/served_model.h"

namespace lazy::serve {

inline constexpr int64_t kMaxAttentionNumbers = int64_t{1} << 20;  // in an answer: about 7 MB

// Answers through `exchange` when the engine has computed it; `on_done` gets the status, once. ApiError when the
// request does not fit the model or is refused. On the strand.
void start_attention(std::shared_ptr<const ServedModel> model, AttentionRequest request,
                     const std::shared_ptr<Exchange>& exchange, std::function<void(int)> on_done);

}  // namespace lazy::serve
