// The bodies of POST /v1/completions, /v1/chat/completions and /v1/attention, read and checked.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "generate/sampler.h"
#include "serve/attention_service.h"
#include "serve/openai/chat_template.h"
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
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
};

struct AttentionFields {
  std::string model;         // "": not named
  AttentionRequest request;  // not compared with the model yet
};

// ApiError naming the field. `unknown` gets the names of keys that are not known.
CompletionRequest parse_completion(const nlohmann::json& body, std::vector<std::string>& unknown);
ChatRequest parse_chat(const nlohmann::json& body, std::vector<std::string>& unknown);
AttentionFields parse_attention(const nlohmann::json& body, std::vector<std::string>& unknown);

}  // namespace lazy::serve
