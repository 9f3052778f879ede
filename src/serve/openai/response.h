// JSON objects of the responses to completions and chat completions, as a whole or as chunks of a stream.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lazy::serve {

enum class Protocol { completions, chat };

// Fields that all objects of one response have in common.
struct AnswerHead {
  Protocol protocol = Protocol::completions;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

// A whole choice, or the part of a choice that one chunk of a stream contains.
struct ChoicePart {
  int64_t index = 0;
  std::string text;
  nlohmann::ordered_json logprobs;                     // null, or log-probabilities in the protocol's format
  std::optional<std::vector<int64_t>> token_ids = {};  // set if the client requested token ids
  const char* finish_reason = nullptr;                 // "stop" or "length"; null: the choice has not ended
  bool first = false;                                  // true for the first chunk of a chat stream, which has the role
};

nlohmann::ordered_json usage_json(const Usage& usage);
std::string whole_answer(const AnswerHead& head, std::vector<ChoicePart> choices, const Usage& usage);
// usage_field: the client requested usage. All chunks before the last one then contain `usage: null`.
std::string chunk(const AnswerHead& head, ChoicePart part, bool usage_field);
std::string usage_chunk(const AnswerHead& head, const Usage& usage);

// Returns `data`, which must be a single line, as a server-sent event: "data: ...\n\n".
std::string sse(std::string_view data);
inline constexpr std::string_view kSseDone = "[DONE]";

}  // namespace lazy::serve
