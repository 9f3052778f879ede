#include "serve/openai/response.h"

#include <fmt/format.h>

namespace lazy::serve {
using Json = nlohmann::ordered_json;

namespace {

Json object_of(const AnswerHead& head, bool part) {
  const bool chat = head.protocol == Protocol::chat;
  return {{"id", head.id},
          {"object", chat ? part ? "chat.completion.chunk" : "chat.completion" : "text_completion"},
          {"created", head.created},
          {"model", head.model}};
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json choice_json(Protocol protocol, ChoicePart part, bool whole) {
  Json out;
  out["index"] = part.index;
  if (protocol == Protocol::completions) {
    out["text"] = std::move(part.text);
  } else if (whole) {
    out["message"] = {{"role", "assistant"}, {"content", std::move(part.text)}};
  } else {
    Json delta = Json::object();
    if (part.first) delta["role"] = "assistant";
    if (part.first || !part.text.empty()) delta["content"] = std::move(part.text);
    out["delta"] = std::move(delta);
  }
  if (part.token_ids) out["token_ids"] = std::move(*part.token_ids);
  out["logprobs"] = std::move(part.logprobs);
  out["finish_reason"] = part.finish_reason ? Json(part.finish_reason) : Json();
  return out;
}

}  // namespace

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

std::string whole_answer(const AnswerHead& head, std::vector<ChoicePart> choices, const Usage& usage) {
  Json out = object_of(head, false);
  Json list = Json::array();
  for (ChoicePart& part : choices) list.push_back(choice_json(head.protocol, std::move(part), true));
  out["choices"] = std::move(list);
  out["usage"] = usage_json(usage);
  return text_of(out);
}

std::string chunk(const AnswerHead& head, ChoicePart part, bool usage_field) {
  Json out = object_of(head, true);
  out["choices"] = Json::array();
  out["choices"].push_back(choice_json(head.protocol, std::move(part), false));
  if (usage_field) out["usage"] = nullptr;
  return text_of(out);
}

std::string usage_chunk(const AnswerHead& head, const Usage& usage) {
  Json out = object_of(head, true);
  out["choices"] = Json::array();
  out["usage"] = usage_json(usage);
  return text_of(out);
}

std::string sse(std::string_view data) { return fmt::format("data: {}\n\n", data); }

}  // namespace lazy::serve
