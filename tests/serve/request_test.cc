// Tests of the parser of request JSON: wrong types and values out of range for every field, and accepted values.
#include "serve/openai/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/text.h"
#include "serve/openai/unsupported_fields.h"
#include "support/error_of.h"

namespace lazy::serve {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

struct Case {
  const char* field;  // field that the error must name as `param`
  const char* value;  // invalid JSON value of this field
  const char* code;
  std::vector<std::string> names;  // other words that the message must contain
};

template <typename Parse>
void expect_error(const Parse& parse, json body, const Case& test) {
  const std::string field = std::string(test.field).substr(0, std::string(test.field).find('.'));
  body[field.substr(0, field.find('['))] = json::parse(test.value);
  std::vector<std::string> unknown;
  try {
    parse(body, unknown);
    ADD_FAILURE() << body.dump() << " was accepted";
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_EQ(e.param(), test.field) << body.dump();
    EXPECT_EQ(e.code(), test.code) << body.dump();
    EXPECT_THAT(e.what(), Names({std::string(test.field)})) << body.dump();
    EXPECT_THAT(e.what(), NamesMatcher(test.names)) << body.dump();
    const json error = json::parse(e.body())["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], test.field);
    EXPECT_EQ(error["code"], test.code);
  }
}

const char* const kType = "invalid_type";
const char* const kValue = "invalid_value";
const char* const kMissing = "missing_field";

const std::vector<Case> kCommon = {
    {"model", "3", kType, {"string", "integer"}},
    {"temperature", "\"1\"", kType, {"number", "string"}},
    {"temperature", "-0.1", kValue, {"0", "2", "-0.1"}},
    {"temperature", "2.5", kValue, {"0", "2", "2.5"}},
    {"top_p", "[]", kType, {"number", "array"}},
    {"top_p", "1.01", kValue, {"0", "1", "1.01"}},
    {"top_k", "1.5", kType, {"integer", "number"}},
    {"top_k", "-2", kValue, {"-1", "-2"}},
    {"min_p", "true", kType, {"number", "boolean"}},
    {"min_p", "-1", kValue, {"0", "1", "-1"}},
    {"presence_penalty", "{}", kType, {"number", "object"}},
    {"presence_penalty", "2.1", kValue, {"-2", "2", "2.1"}},
    {"frequency_penalty", "\"\"", kType, {"number", "string"}},
    {"frequency_penalty", "-3", kValue, {"-2", "2", "-3"}},
    {"repetition_penalty", "\"\"", kType, {"number", "string"}},
    {"repetition_penalty", "0", kValue, {"0"}},
    {"repetition_penalty", "1e9", kValue, {"0", "100"}},
    {"logit_bias", "[]", kType, {"object", "array"}},
    {"logit_bias", "{\"a\": 1}", kValue, {"\"a\""}},
    {"logit_bias", "{\"-1\": 1}", kValue, {"\"-1\""}},
    {"logit_bias", "{\"1\": \"x\"}", kType, {"numbers", "string"}},
    {"logit_bias", "{\"1\": 101}", kValue, {"-100", "100", "101", "1"}},
    {"seed", "\"1\"", kType, {"integer", "string"}},
    {"seed", "0.5", kType, {"integer", "number"}},
    {"stop", "3", kType, {"string", "array", "integer"}},
    {"stop", "[1]", kType, {"string", "array", "integer"}},
    {"stop",
     "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]",
     kValue,
     {"16", "17"}},
    {"stop_token_ids", "3", kType, {"array", "integer"}},
    {"stop_token_ids", "[\"3\"]", kType, {"integer", "string"}},
    {"stop_token_ids", "[-3]", kValue, {"0", "-3"}},
    {"ignore_eos", "1", kType, {"boolean", "integer"}},
    {"n", "0", kValue, {"1", "128", "0"}},
    {"n", "129", kValue, {"1", "128", "129"}},
    {"n", "\"2\"", kType, {"integer", "string"}},
    {"best_of", "2", kValue, {"n", "1", "2"}},
    {"max_tokens", "-1", kValue, {"0", "-1"}},
    {"max_tokens", "\"5\"", kType, {"integer", "string"}},
    {"stream", "\"yes\"", kType, {"boolean", "string"}},
    {"stream_options", "{}", kValue, {"stream", "true"}},
};

TEST(CompletionRequest, InvalidFields_AreNamedInTheError) {
  for (const Case& test : kCommon) expect_error(parse_completion, {{"prompt", "x"}}, test);
  const std::vector<Case> cases = {
      {"prompt", "null", kMissing, {}},
      {"prompt", "3", kType, {"string", "array", "integer"}},
      {"prompt", "{}", kType, {"string", "array", "object"}},
      {"prompt", "[]", kValue, {}},
      {"prompt", "[[]]", kValue, {}},
      {"prompt", "[1, \"a\"]", kType, {"integer", "string"}},
      {"prompt", "[1, 1.5]", kType, {"integer", "number"}},
      {"prompt", "[\"a\", 1]", kType, {"string", "integer"}},
      {"prompt", "[[1], \"a\"]", kType, {"array", "string"}},
      {"prompt", "[[1], [null]]", kType, {"integer", "null"}},
      {"prompt", "[-1]", kValue, {"0", "-1"}},
      {"prompt", "[true]", kType, {"array", "boolean"}},
      {"prompt", "[null]", kType, {"array", "null"}},
      {"logprobs", "21", kValue, {"0", "20", "21"}},
      {"logprobs", "-1", kValue, {"0", "20", "-1"}},
      {"logprobs", "true", kType, {"integer", "boolean"}},
      {"echo", "1", kType, {"boolean", "integer"}},
      {"add_special_tokens", "1", kType, {"boolean", "integer"}},
      {"suffix", "\"x\"", kValue, {}},
  };
  for (const Case& test : cases) expect_error(parse_completion, {{"prompt", "x"}}, test);
  expect_error(parse_completion, {{"prompt", "x"}, {"stream", true}},
               {"stream_options", "[]", kType, {"object", "array"}});
  expect_error(parse_completion, {{"prompt", "x"}, {"stream", true}},
               {"stream_options.include_usage", "{\"include_usage\": 1}", kType, {"boolean", "integer"}});
  expect_error(parse_completion, {{"prompt", std::vector<std::string>(200, "a")}}, {"n", "2", kValue, {"256", "400"}});
  expect_error(parse_completion, {},
               {"prompt", json(std::vector<std::string>(257, "a")).dump().c_str(), kValue, {"256", "257"}});
}

ChatRequest parse_chat_body(const json& body, std::vector<std::string>& unknown) {
  return parse_chat(body, body.dump(), unknown);
}

TEST(ChatRequest, InvalidFields_AreNamedInTheError) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  for (const Case& test : kCommon) expect_error(parse_chat_body, body, test);
  const std::vector<Case> cases = {
      {"messages", "null", kMissing, {}},
      {"messages", "{}", kType, {"array", "object"}},
      {"messages", "[]", kValue, {}},
      {"messages", "[3]", kType, {"object", "integer"}},
      {"messages[0].role", "[{\"content\": \"x\"}]", kMissing, {}},
      {"messages[0].role", "[{\"role\": 3, \"content\": \"x\"}]", kType, {"string", "integer"}},
      {"messages[0].content", "[{\"role\": \"user\"}]", kMissing, {}},
      {"messages[0].content", "[{\"role\": \"user\", \"content\": 3}]", kType, {"string", "array", "integer"}},
      {"messages[0].content", "[{\"role\": \"user\", \"content\": [3]}]", kValue, {}},
      {"messages[0].content", "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", kValue, {"text"}},
      {"logprobs", "3", kType, {"boolean", "integer"}},
      {"top_logprobs", "3", kValue, {"logprobs", "true"}},
      {"top_logprobs", "21", kValue, {"0", "20", "21"}},
      {"tools", "[{}]", kValue, {}},
      {"response_format", "{\"type\": \"json_object\"}", kValue, {"type", "text"}},
      {"response_format", "3", kValue, {"type", "text"}},
      {"max_completion_tokens", "-1", kValue, {"0", "-1"}},
  };
  for (const Case& test : cases) expect_error(parse_chat_body, body, test);
}

TEST(ApiErrors, Body_HasOpenAiFormat) {
  std::vector<std::string> unknown;
  try {
    parse_completion({{"prompt", "x"}, {"temperature", -0.1}}, unknown);
    ADD_FAILURE() << "accepted";
  } catch (const ApiError& e) {
    EXPECT_THAT(e.body(),
                IsMessage(R"({"error":{"message":"temperature: expected 0 to 2, found -0.1",)"
                          R"("type":"invalid_request_error","param":"temperature","code":"invalid_value"}})"));
  }
}

TEST(CompletionRequest, Null_IsTreatedAsAbsent_AndDefaultsMatchOpenAi) {
  const json body = json::parse(R"({"prompt": "x", "model": null, "temperature": null, "n": null, "stop": null,
    "logprobs": null, "logit_bias": null, "max_tokens": null, "stream": null, "seed": null, "suffix": null})");
  std::vector<std::string> unknown;
  const CompletionRequest request = parse_completion(body, unknown);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.logprobs, -1);
  EXPECT_FALSE(request.seed);
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(unknown.empty());
}

TEST(CompletionRequest, UnusualValidValues_AreAccepted) {
  std::vector<std::string> unknown;
  const CompletionRequest request = parse_completion(
      json::parse(R"({"prompt": "", "n": 2.0, "top_p": 0, "top_k": -1, "seed": -1, "stop": ["", "a"], "foo": 1,
        "bar": {"deep": []}, "max_tokens": 0, "user": "u", "temperature": 0})"),
      unknown);
  EXPECT_EQ(request.n, 2);
  // top_p = 0 selects greedy decoding, which the parser stores as top_k = 1 with top_p = 1
  EXPECT_EQ(request.sampling.top_k, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.seed, UINT64_MAX);
  EXPECT_THAT(request.stop, ElementsAre("a"));
  EXPECT_THAT(unknown, ElementsAre("bar", "foo"));
}

TEST(ChatRequest, TextParts_AreJoined_AndBothLimitNamesAreAccepted) {
  std::vector<std::string> unknown;
  const ChatRequest request =
      parse_chat_body(json::parse(R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [
        {"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}], "max_completion_tokens": 7, "tools": [],
        "response_format": {"type": "text"}, "logprobs": true, "top_logprobs": 2})"),
                      unknown);
  ASSERT_EQ(request.messages.size(), 2u);
  EXPECT_EQ(request.messages[1]["content"], "bc");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_TRUE(unknown.empty());
}

// Parses a minimal valid request with one additional field. Returns the field that the error names, or "" if the
// request is valid. A field of a valid request must not be reported as unknown.
std::string refused_field(Endpoint endpoint, const std::string& name, const json& value) {
  const bool chat = endpoint == Endpoint::chat;
  json body = chat ? json{{"messages", {{{"role", "user"}, {"content", "x"}}}}} : json{{"prompt", "x"}};
  body[name] = value;
  std::vector<std::string> unknown;
  try {
    if (chat) {
      parse_chat_body(body, unknown);
    } else {
      parse_completion(body, unknown);
    }
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_THAT(e.what(), Names({name}));
    return e.param();
  }
  EXPECT_TRUE(unknown.empty()) << name;
  return "";
}

TEST(CompletionRequest, UnsupportedFields_AreRefusedUnlessTheyRequestTheDefault) {
  const json other = {{"x", 12345}};  // a value that no field accepts
  for (const Endpoint endpoint : {Endpoint::completions, Endpoint::chat}) {
    for (const UnsupportedField& field : unsupported_fields()) {
      if ((field.endpoints & static_cast<int>(endpoint)) == 0) continue;
      const std::string name(field.name);
      EXPECT_EQ(refused_field(endpoint, name, other), field.accepted.empty() ? "" : name);
      EXPECT_EQ(refused_field(endpoint, name, nullptr), "");
      if (field.accepted.empty()) continue;
      for (const json& value : json::parse(field.accepted)) EXPECT_EQ(refused_field(endpoint, name, value), "");
    }
  }
  // Clients may expect these fields to work, so requests that use them must be refused.
  for (const Endpoint endpoint : {Endpoint::completions, Endpoint::chat}) {
    EXPECT_EQ(refused_field(endpoint, "tools", {{{"type", "function"}}}), "tools");
    EXPECT_EQ(refused_field(endpoint, "tool_choice", "required"), "tool_choice");
    EXPECT_EQ(refused_field(endpoint, "response_format", {{"type", "json_object"}}), "response_format");
    EXPECT_EQ(refused_field(endpoint, "guided_choice", {"yes", "no"}), "guided_choice");
    EXPECT_EQ(refused_field(endpoint, "min_tokens", 5), "min_tokens");
    EXPECT_EQ(refused_field(endpoint, "n_predict", 5), "n_predict");
    EXPECT_EQ(refused_field(endpoint, "suffix", "x"), "suffix");
    EXPECT_EQ(refused_field(endpoint, "cache_prompt", true), "");
  }
}

// In the course of a conversation, clients send the list of tools with every request, even if the next answer must be
// text. The tools are then ignored.
TEST(ChatRequest, ToolsAreIgnored_IfNoneMayBeCalled) {
  for (const auto& [tools, choice] : {std::pair{"tools", "tool_choice"}, {"functions", "function_call"}}) {
    json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {tools, {{{"type", "function"}}}}};
    std::vector<std::string> unknown;
    EXPECT_THROW(parse_chat_body(body, unknown), ApiError) << tools;
    body[choice] = "auto";
    EXPECT_THROW(parse_chat_body(body, unknown), ApiError) << tools;
    body[choice] = "none";
    const ChatRequest request = parse_chat_body(body, unknown);
    EXPECT_TRUE(unknown.empty());
    EXPECT_FALSE(request.variables.contains(tools));
  }
}

// The lists in docs/guides/serve.md must contain every unsupported field and say how the server treats it.
TEST(CompletionRequest, UnsupportedFields_AreDocumented) {
  const std::string page = read_file(LAZY_SOURCE_DIR "/docs/guides/serve.md");
  const auto names_after = [&](const std::string& heading) {
    std::set<std::string> names;
    const size_t begin = page.find(heading);
    EXPECT_NE(begin, std::string::npos) << heading;
    const std::vector<std::string> parts = split(page.substr(begin, page.find("\n#", begin + 1) - begin), '`');
    for (size_t i = 1; i < parts.size(); i += 2) names.insert(parts[i]);
    return names;
  };
  const auto refused = names_after("### Fields that are refused"), ignored = names_after("### Fields that are ignored");
  for (const UnsupportedField& field : unsupported_fields()) {
    const std::string name(field.name);
    EXPECT_EQ(refused.contains(name), !field.accepted.empty()) << name;
    EXPECT_EQ(ignored.contains(name), field.accepted.empty()) << name;
  }
}

TEST(Body, Body_MustBeOneJsonObject) {
  const auto message = [](const std::string& body) -> std::string {
    try {
      parse_body(body);
      return "";
    } catch (const ApiError& e) {
      EXPECT_EQ(e.status(), 400);
      EXPECT_EQ(e.code(), "invalid_json");
      return e.what();
    }
  };
  EXPECT_EQ(message("{}"), "");
  EXPECT_THAT(message(""), Names({"JSON"}));
  EXPECT_THAT(message("{\"a\": }"), Names({"JSON", "byte", 7}));
  EXPECT_THAT(message("[1]"), Names({"JSON", "array"}));
  EXPECT_THAT(message("{\"a\": 1e999}"), Names({"JSON", "number"}));
  EXPECT_THAT(message("{\"a\": \"\xff\"}"), Names({"JSON", "byte"}));
  EXPECT_THAT(message(std::string(1000000, '[')), Names({"JSON", "byte"}));
  EXPECT_EQ(message("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}"), "");
}

}  // namespace
}  // namespace lazy::serve
