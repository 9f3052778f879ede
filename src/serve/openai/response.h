// The JSON objects that answer completions and chat completions, whole and in chunks.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lazy::serve {

enum class Protocol { completions, chat };

// What all objects of one answer have.
struct AnswerHead {
  Protocol protocol = Protocol::completions;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

// One choice, or what a chunk adds to one.
struct ChoicePart {
  int64_t index = 0;
  std::string text;
  nlohmann::ordered_json logprobs;                     // null, or as the protocol has them
  std::optional<std::vector<int64_t>> token_ids = {};  // where they were asked for
  const char* finish_reason = nullptr;                 // "stop", "length"
  bool first = false;                                  // of a stream of chat: with the role
};

nlohmann::ordered_json usage_json(const Usage& usage);
std::string whole_answer(const AnswerHead& head, std::vector<ChoicePart> choices, const Usage& usage);
// usage_field: the client asked for usage, which all chunks but the last then have as null.
std::string chunk(const AnswerHead& head, ChoicePart part, bool usage_field);
std::string usage_chunk(const AnswerHead& head, const Usage& usage);

// Framing of server-sent events: "data: ...\n\n". `data` is one line.
std::string sse(std::string_view data);
inline constexpr std::string_view kSseDone = "[DONE]";

}  // namespace lazy::serve
