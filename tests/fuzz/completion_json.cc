// Fuzzes the parser of JSON requests to POST /v1/completions, /v1/chat/completions and /v1/attention.
#include <nlohmann/json.hpp>

#include "serve/openai/request.h"
#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(completion_json) {
  const std::string body(input);
  try {
    const nlohmann::json json = serve::parse_body(body);
    std::vector<std::string> unknown;
    if (json.contains("rows")) {
      const AttentionRequest request = serve::parse_attention(json, unknown).request;
      fuzz::require(request.first >= 0 && request.first < static_cast<int64_t>(request.tokens.size()),
                    "first is an index into tokens");
      return;
    }
    const bool chat = json.contains("messages");
    const serve::GenerationFields fields = chat ? serve::GenerationFields(serve::parse_chat(json, body, unknown))
                                                : serve::GenerationFields(serve::parse_completion(json, unknown));
    fields.sampling.validate("serve");  // options that the parser accepts must be valid for the sampler
    fuzz::require(fields.n >= 1 && fields.n <= 128, "n is within its limits");
    fuzz::require(fields.stop.size() <= serve::kMaxStopStrings, "stop strings are within their limit");
    fuzz::require(chat || fields.max_tokens.value_or(-1) >= 0, "max_tokens is set");
  } catch (const serve::ApiError& e) {
    fuzz::require(e.status() == 400, "an invalid request is an error of the client");
    const nlohmann::json error = nlohmann::json::parse(e.body(), nullptr, false);
    fuzz::require(error.is_object() && error["error"]["message"].is_string(),
                  "an error response contains an error object");
    throw;
  }
}
