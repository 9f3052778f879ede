// Parsing and validation of the request bodies of /v1/completions, /v1/chat/completions and /v1/attention.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "generate/sampler.h"
#include "serve/attention_service.h"
#include "serve/openai/fields.h"

namespace lazy::serve {

inline constexpr int kMaxLogprobs = 20;
inline constexpr int64_t kMaxChoices = 256;  // maximum number of choices: number of prompts times n
inline constexpr size_t kMaxStopStrings = 16, kMaxStopBytes = 1024;
inline constexpr size_t kMaxAttentionRows = 64;

// Fields that completions and chat completions have in common.
struct GenerationFields {
  std::string model;  // "": the request does not name a model
  SamplingOptions sampling;
  std::optional<uint64_t> seed;  // choice i of a prompt uses seed + i
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;  // omit special tokens from the text; stop strings can still match them
  int64_t n = 1;
  int logprobs = -1;  // number of most likely tokens to report; -1: no log-probabilities
  bool stream = false, include_usage = false;
  bool return_token_ids = false;  // also return the ids of the generated tokens
};

using Prompt = std::variant<std::string, std::vector<int64_t>>;

struct CompletionRequest : GenerationFields {
  std::vector<Prompt> prompts;
  bool echo = false;
  std::optional<bool> add_special_tokens;  // whether to add BOS before text prompts
};

struct ChatRequest : GenerationFields {
  // The messages as the client sent them, except that arrays of text parts are replaced by the joined text.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json variables;  // template variables, such as add_generation_prompt, documents
};

struct AttentionFields {
  std::string model;         // "": the request does not name a model
  AttentionRequest request;  // its ids are not yet compared with the model's limits
};

// Throws ApiError that names the invalid field. `unknown` receives the names of unsupported fields.
CompletionRequest parse_completion(const nlohmann::json& body, std::vector<std::string>& unknown);
// text: the unparsed body, which preserves the client's order of the keys in messages; templates can see this order.
ChatRequest parse_chat(const nlohmann::json& body, const std::string& text, std::vector<std::string>& unknown);
AttentionFields parse_attention(const nlohmann::json& body, std::vector<std::string>& unknown);

}  // namespace lazy::serve
