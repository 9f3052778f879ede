#include "serve/openai/request.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "serve/openai/unsupported_fields.h"

namespace lazy::serve {
using nlohmann::json;

namespace {

std::vector<std::string> read_stop(Fields& fields) {
  std::vector<std::string> out;
  const json* value = fields.find("stop");
  if (!value) return out;
  const auto add = [&](const json& stop) {
    if (!stop.is_string()) {
      throw ApiError(400, "stop: expected a string or an array of strings, found " + type_of(stop), "stop",
                     "invalid_type");
    }
    auto text = stop.get<std::string>();
    if (text.size() > kMaxStopBytes) {
      wrong_field("stop", fmt::format("expected strings of at most {} bytes, found {}", kMaxStopBytes, text.size()));
    }
    if (!text.empty()) out.push_back(std::move(text));  // lm-evaluation-harness sends empty strings, which are ignored
  };
  if (value->is_array()) {
    if (value->size() > kMaxStopStrings) {
      wrong_field("stop", fmt::format("expected at most {} strings, found {}", kMaxStopStrings, value->size()));
    }
    for (const json& stop : *value) add(stop);
  } else {
    add(*value);
  }
  return out;
}

std::vector<std::pair<int64_t, float>> read_logit_bias(Fields& fields) {
  std::vector<std::pair<int64_t, float>> out;
  const json* value = fields.find("logit_bias");
  if (!value) return out;
  if (!value->is_object()) {
    throw ApiError(400, "logit_bias: expected an object that maps token ids to biases, found " + type_of(*value),
                   "logit_bias", "invalid_type");
  }
  for (const auto& [key, bias] : value->items()) {
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0) {
      wrong_field("logit_bias", fmt::format("expected token ids as keys, found \"{}\"", key.substr(0, 40)));
    }
    if (!bias.is_number()) {
      throw ApiError(400, "logit_bias: expected numbers, found " + type_of(bias), "logit_bias", "invalid_type");
    }
    const double number = bias.get<double>();
    if (!(std::abs(number) <= 100)) {
      wrong_field("logit_bias", fmt::format("expected -100 to 100, found {} for token {}", number, id));
    }
    out.emplace_back(id, static_cast<float>(number));
  }
  return out;
}

void read_common(Fields& fields, GenerationFields& out) {
  out.model = fields.string("model", "");
  SamplingOptions& sampling = out.sampling;
  sampling.temperature = fields.number("temperature", 1, 0, 2);
  sampling.top_p = fields.number("top_p", 1, 0, 1);
  if (sampling.top_p == 0) {  // top_p = 0 selects greedy decoding in OpenAI's API
    sampling.top_p = 1;
    sampling.top_k = 1;
  }
  const int64_t top_k = fields.integer("top_k", 0, -1, INT64_MAX);
  if (top_k > 0) sampling.top_k = sampling.top_k == 1 ? 1 : top_k;
  sampling.min_p = fields.number("min_p", 0, 0, 1);
  sampling.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
  sampling.repetition_penalty = fields.number("repetition_penalty", 1, 0, 100);
  if (sampling.repetition_penalty == 0) wrong_field("repetition_penalty", "expected more than 0, found 0");
  sampling.logit_bias = read_logit_bias(fields);
  if (fields.find("seed")) out.seed = static_cast<uint64_t>(fields.integer("seed", 0, INT64_MIN, INT64_MAX));
  out.stop = read_stop(fields);
  out.stop_token_ids = fields.ids("stop_token_ids");
  if (out.stop_token_ids.size() > 128) wrong_field("stop_token_ids", "expected at most 128 ids");
  out.ignore_eos = fields.boolean("ignore_eos", false);
  out.skip_special_tokens = fields.boolean("skip_special_tokens", true);
  out.n = fields.integer("n", 1, 1, 128);
  if (const int64_t best_of = fields.integer("best_of", out.n, 1, 128); best_of != out.n) {
    wrong_field("best_of", fmt::format("expected the value of n ({}), found {}", out.n, best_of));
  }
  out.stream = fields.boolean("stream", false);
  if (const json* options = fields.find("stream_options")) {
    if (!out.stream) refuse_field("stream_options", "stream_options requires stream: true");
    if (!options->is_object()) {
      throw ApiError(400, "stream_options: expected an object, found " + type_of(*options), "stream_options",
                     "invalid_type");
    }
    Fields stream_fields(*options, "stream_options.");
    out.include_usage = stream_fields.boolean("include_usage", false);
    if (stream_fields.boolean("continuous_usage_stats", false)) {
      refuse_field("stream_options.continuous_usage_stats",
                   "stream_options.continuous_usage_stats is not supported; use stream_options.include_usage");
    }
  }
  out.return_token_ids = fields.boolean("return_token_ids", false);
}

Prompt read_ids(const json& array) {
  std::vector<int64_t> ids;
  ids.reserve(array.size());
  for (const json& id : array) ids.push_back(token_id(id, "prompt"));
  return ids;
}

std::vector<Prompt> read_prompts(Fields& fields) {
  const char* expected =
      "prompt: expected a string, an array of strings, an array of token ids or an array of such arrays";
  const json* value = fields.find("prompt");
  if (!value) throw ApiError(400, "prompt is required", "prompt", "missing_field");
  std::vector<Prompt> out;
  if (value->is_string()) {
    out.emplace_back(value->get<std::string>());
    return out;
  }
  if (!value->is_array())
    throw ApiError(400, fmt::format("{}, found {}", expected, type_of(*value)), "prompt", "invalid_type");
  if (value->empty()) wrong_field("prompt", "the array is empty");
  if (value->front().is_number()) {
    out.push_back(read_ids(*value));
    return out;
  }
  if (value->size() > static_cast<size_t>(kMaxChoices)) {
    wrong_field("prompt", fmt::format("expected at most {} prompts, found {}", kMaxChoices, value->size()));
  }
  const bool texts = value->front().is_string();
  for (const json& prompt : *value) {
    if (texts ? !prompt.is_string() : !prompt.is_array()) {
      throw ApiError(400, fmt::format("{}, found {} in the array", expected, type_of(prompt)), "prompt",
                     "invalid_type");
    }
    if (texts) {
      out.emplace_back(prompt.get<std::string>());
    } else {
      if (prompt.empty()) wrong_field("prompt", "an array of token ids is empty");
      out.push_back(read_ids(prompt));
    }
  }
  return out;
}

// Checks a message and joins its text parts. All other keys (name, tool_calls, reasoning_content) remain unchanged for
// the template.
void read_message(nlohmann::ordered_json& message, size_t index) {
  const std::string name = fmt::format("messages[{}]", index);
  const json value = message;
  if (!value.is_object()) {
    throw ApiError(400, fmt::format("{}: expected an object, found {}", name, type_of(value)), "messages",
                   "invalid_type");
  }
  Fields fields(value, name + ".");
  fields.required_string("role");
  const json* content = fields.find("content");
  // In OpenAI's API, an assistant message that only calls tools has no content.
  if (!content && !value.contains("tool_calls") && !value.contains("function_call")) {
    throw ApiError(400, name + ".content is required", name + ".content", "missing_field");
  }
  if (!content || content->is_string()) return;
  if (!content->is_array()) {
    throw ApiError(
        400, fmt::format("{}.content: expected a string or an array of text parts, found {}", name, type_of(*content)),
        name + ".content", "invalid_type");
  }
  std::string joined;
  for (const json& part : *content) {
    if (!part.is_object()) wrong_field(name + ".content", "expected an array of objects");
    Fields part_fields(part, name + ".content.");
    const std::string type = part_fields.required_string("type");
    if (type != "text") wrong_field(name + ".content", "only parts of type \"text\" are supported");
    joined += part_fields.required_string("text");
  }
  message["content"] = joined;
}

// Reads the variables that the chat template receives in addition to the messages.
nlohmann::ordered_json read_template_variables(Fields& fields) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  if (const json* more = fields.find("chat_template_kwargs")) {
    if (!more->is_object()) {
      throw ApiError(400, "chat_template_kwargs: expected an object, found " + type_of(*more), "chat_template_kwargs",
                     "invalid_type");
    }
    for (const char* name : {"messages", "tools"}) {
      if (more->contains(name)) wrong_field("chat_template_kwargs", fmt::format("{} cannot be set here", name));
    }
    out.update(nlohmann::ordered_json(*more));
  }
  if (const json* documents = fields.find("documents")) {
    if (!documents->is_array()) {
      throw ApiError(400, "documents: expected an array, found " + type_of(*documents), "documents", "invalid_type");
    }
    out["documents"] = *documents;
  }
  if (const std::string effort = fields.string("reasoning_effort", ""); !effort.empty()) {
    out["reasoning_effort"] = effort;
  }
  out["add_generation_prompt"] = fields.boolean("add_generation_prompt", true);
  return out;
}

int64_t index_or_all(const json& value, const std::string& field) {
  if (value.is_null()) return -1;
  return token_id(value, field);
}

std::vector<HeadChoice> read_rows(Fields& fields) {
  std::vector<HeadChoice> out;
  const json* value = fields.find("rows");
  if (!value) return out;
  const char* expected =
      "rows: expected an array of [layer, head] pairs, where null selects the mean over all layers or heads";
  if (!value->is_array()) {
    throw ApiError(400, fmt::format("{}; found {}", expected, type_of(*value)), "rows", "invalid_type");
  }
  if (value->size() > kMaxAttentionRows) {
    wrong_field("rows", fmt::format("expected at most {}, found {}", kMaxAttentionRows, value->size()));
  }
  for (const json& row : *value) {
    if (!row.is_array() || row.size() != 2) throw ApiError(400, expected, "rows", "invalid_type");
    out.push_back({index_or_all(row[0], "rows"), index_or_all(row[1], "rows")});
  }
  return out;
}

}  // namespace

CompletionRequest parse_completion(const json& body, std::vector<std::string>& unknown) {
  Fields fields(body);
  CompletionRequest out;
  refuse_unsupported_fields(fields, Endpoint::completions);
  read_common(fields, out);
  out.prompts = read_prompts(fields);
  if (static_cast<int64_t>(out.prompts.size()) * out.n > kMaxChoices) {
    wrong_field("n", fmt::format("expected at most {} choices (prompts times n), found {}", kMaxChoices,
                                 static_cast<int64_t>(out.prompts.size()) * out.n));
  }
  out.max_tokens = fields.integer("max_tokens", 16, 0, INT64_MAX);
  out.logprobs = static_cast<int>(fields.integer("logprobs", -1, 0, kMaxLogprobs));
  out.echo = fields.boolean("echo", false);
  if (fields.find("add_special_tokens")) out.add_special_tokens = fields.boolean("add_special_tokens", true);
  unknown = fields.unknown();
  return out;
}

ChatRequest parse_chat(const json& body, const std::string& text, std::vector<std::string>& unknown) {
  Fields fields(body);
  ChatRequest out;
  refuse_unsupported_fields(fields, Endpoint::chat);
  read_common(fields, out);
  const json* messages = fields.find("messages");
  if (!messages) throw ApiError(400, "messages is required", "messages", "missing_field");
  if (!messages->is_array()) {
    throw ApiError(400, "messages: expected an array, found " + type_of(*messages), "messages", "invalid_type");
  }
  if (messages->empty()) wrong_field("messages", "the array is empty");
  out.messages = nlohmann::ordered_json::parse(text).at("messages");
  for (size_t i = 0; i < out.messages.size(); ++i) read_message(out.messages[i], i);
  // "max_completion_tokens" is OpenAI's newer name of "max_tokens".
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (fields.find(name)) out.max_tokens = fields.integer(name, 0, 0, INT64_MAX);
  }
  const bool logprobs = fields.boolean("logprobs", false);
  const int64_t top = fields.integer("top_logprobs", 0, 0, kMaxLogprobs);
  if (top > 0 && !logprobs) refuse_field("top_logprobs", "top_logprobs requires logprobs: true");
  if (logprobs) out.logprobs = static_cast<int>(top);
  out.variables = read_template_variables(fields);
  unknown = fields.unknown();
  return out;
}

AttentionFields parse_attention(const json& body, std::vector<std::string>& unknown) {
  Fields fields(body);
  AttentionFields out;
  out.model = fields.string("model", "");
  if (!fields.find("tokens")) throw ApiError(400, "tokens is required", "tokens", "missing_field");
  out.request.tokens = fields.ids("tokens");
  if (out.request.tokens.empty()) wrong_field("tokens", "the array is empty");
  const auto last = static_cast<int64_t>(out.request.tokens.size()) - 1;
  out.request.first = fields.integer("first", last, 0, last);
  out.request.rows = read_rows(fields);
  unknown = fields.unknown();
  return out;
}

}  // namespace lazy::serve
