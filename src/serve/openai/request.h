// The bodies of POST /v1/completions, /v1/chat/completions and /v1/attention, read and checked.
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
inline constexpr int64_t kMaxChoices = 256;  // prompts times n
inline constexpr size_t kMaxStopStrings = 16, kMaxStopBytes = 1024;
inline constexpr size_t kMaxAttentionRows = 64;

// What both have.
struct GenerationFields {
  std::string model;  // "": not named
  SamplingOptions sampling;
  std::optional<uint64_t> seed;  // choice i of a prompt uses seed + i
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;  // the text leaves them out; stop strings still see them
  int64_t n = 1;
  int logprobs = -1;  // most likely tokens to report; -1: no log-probabilities
  bool stream = false, include_usage = false;
  bool return_token_ids = false;  // of the text, beside it
};

using Prompt = std::variant<std::string, std::vector<int64_t>>;

struct CompletionRequest : GenerationFields {
  std::vector<Prompt> prompts;
  bool echo = false;
  std::optional<bool> add_special_tokens;  // BOS before prompts that are texts
};

struct ChatRequest : GenerationFields {
  // As the client sent them, but that an array of text parts is replaced by the joined text.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json variables;  // of the template: add_generation_prompt, documents, chat_template_kwargs
};

struct AttentionFields {
  std::string model;         // "": not named
  AttentionRequest request;  // not compared with the model yet
};

// ApiError naming the field. `unknown` gets the names of keys that are not known.
CompletionRequest parse_completion(const nlohmann::json& body, std::vector<std::string>& unknown);
// `text`: the same body unparsed; templates see the keys of messages in the client's order.
ChatRequest parse_chat(const nlohmann::json& body, const std::string& text, std::vector<std::string>& unknown);
AttentionFields parse_attention(const nlohmann::json& body, std::vector<std::string>& unknown);

}  // namespace lazy::serve
