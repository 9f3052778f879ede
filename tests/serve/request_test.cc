// Requests' JSON: every field with a wrong type and out of its range, and what is accepted.
#include "serve/openai/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lazy::serve {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Case {
  const char* field;  // the error's param
  const char* value;  // JSON for the field's first name
  const char* message;
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
    EXPECT_THAT(e.what(), HasSubstr(test.message)) << body.dump();
    EXPECT_THAT(e.what(), StartsWith(e.param())) << body.dump();
    const json error = json::parse(e.body())["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], test.field);
    EXPECT_TRUE(error["code"].is_string());
  }
}

const Case kCommon[] = {
    {"model", "3", "expected a string, found an integer"},
    {"temperature", "\"1\"", "expected a number, found a string"},
    {"temperature", "-0.1", "expected 0 to 2, found -0.1"},
    {"temperature", "2.5", "expected 0 to 2"},
    {"top_p", "[]", "expected a number, found an array"},
    {"top_p", "1.01", "expected 0 to 1"},
    {"top_k", "1.5", "expected an integer, found a number"},
    {"top_k", "-2", "expected -1 or more"},
    {"min_p", "true", "expected a number, found a boolean"},
    {"min_p", "-1", "expected 0 to 1"},
    {"presence_penalty", "{}", "expected a number, found an object"},
    {"presence_penalty", "2.1", "expected -2 to 2"},
    {"frequency_penalty", "\"\"", "expected a number"},
    {"frequency_penalty", "-3", "expected -2 to 2"},
    {"repetition_penalty", "\"\"", "expected a number"},
    {"repetition_penalty", "0", "expected more than 0"},
    {"repetition_penalty", "1e9", "expected 0 to 100"},
    {"logit_bias", "[]", "expected an object"},
    {"logit_bias", "{\"a\": 1}", "expected token ids as keys"},
    {"logit_bias", "{\"-1\": 1}", "expected token ids as keys"},
    {"logit_bias", "{\"1\": \"x\"}", "expected numbers"},
    {"logit_bias", "{\"1\": 101}", "expected -100 to 100"},
    {"seed", "\"1\"", "expected an integer"},
    {"seed", "0.5", "expected an integer"},
    {"stop", "3", "expected a string or an array of strings"},
    {"stop", "[1]", "expected a string or an array of strings"},
    {"stop", "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]",
     "at most 16 strings, found 17"},
    {"stop_token_ids", "3", "expected an array of token ids"},
    {"stop_token_ids", "[\"3\"]", "expected a token id"},
    {"stop_token_ids", "[-3]", "expected a token id of 0 or more"},
    {"ignore_eos", "1", "expected a boolean"},
    {"n", "0", "expected 1 to 128"},
    {"n", "129", "expected 1 to 128"},
    {"n", "\"2\"", "expected an integer"},
    {"best_of", "2", "only where it equals n"},
    {"max_tokens", "-1", "expected 0 or more"},
    {"max_tokens", "\"5\"", "expected an integer"},
    {"stream", "\"yes\"", "expected a boolean"},
    {"stream_options", "{}", "only with stream"},
};

TEST(CompletionRequest, WrongFieldsAreNamed) {
  for (const Case& test : kCommon) expect_error(parse_completion, {{"prompt", "x"}}, test);
  const Case cases[] = {
      {"prompt", "null", "is required"},
      {"prompt", "3", "expected a string, an array"},
      {"prompt", "{}", "expected a string, an array"},
      {"prompt", "[]", "the array is empty"},
      {"prompt", "[[]]", "is empty"},
      {"prompt", "[1, \"a\"]", "expected a token id (an integer), found a string"},
      {"prompt", "[1, 1.5]", "expected a token id (an integer), found a number"},
      {"prompt", "[\"a\", 1]", "found an integer in the array"},
      {"prompt", "[[1], \"a\"]", "found a string in the array"},
      {"prompt", "[[1], [null]]", "expected a token id (an integer), found null"},
      {"prompt", "[-1]", "0 or more, found -1"},
      {"prompt", "[true]", "found a boolean in the array"},
      {"prompt", "[null]", "found null in the array"},
      {"logprobs", "21", "expected 0 to 20"},
      {"logprobs", "-1", "expected 0 to 20"},
      {"logprobs", "true", "expected an integer"},
      {"echo", "1", "expected a boolean"},
      {"add_special_tokens", "1", "expected a boolean"},
      {"suffix", "\"x\"", "is not supported"},
  };
  for (const Case& test : cases) expect_error(parse_completion, {{"prompt", "x"}}, test);
  expect_error(parse_completion, {{"prompt", "x"}, {"stream", true}}, {"stream_options", "[]", "expected an object"});
  expect_error(parse_completion, {{"prompt", "x"}, {"stream", true}},
               {"stream_options.include_usage", "{\"include_usage\": 1}", "expected a boolean"});
  expect_error(parse_completion, {{"prompt", std::vector<std::string>(200, "a")}},
               {"n", "2", "at most 256, found 400"});
  expect_error(parse_completion, {},
               {"prompt", json(std::vector<std::string>(257, "a")).dump().c_str(), "at most 256"});
}

TEST(ChatRequest, WrongFieldsAreNamed) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  for (const Case& test : kCommon) expect_error(parse_chat, body, test);
  const Case cases[] = {
      {"messages", "null", "is required"},
      {"messages", "{}", "expected an array"},
      {"messages", "[]", "the array is empty"},
      {"messages", "[3]", "expected an object"},
      {"messages[0].role", "[{\"content\": \"x\"}]", "is required"},
      {"messages[0].role", "[{\"role\": 3, \"content\": \"x\"}]", "expected a string"},
      {"messages[0].content", "[{\"role\": \"user\"}]", "is required"},
      {"messages[0].content", "[{\"role\": \"user\", \"content\": 3}]", "expected a string or an array"},
      {"messages[0].content", "[{\"role\": \"user\", \"content\": [3]}]", "objects"},
      {"messages[0].content", "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", "\"text\""},
      {"logprobs", "3", "expected a boolean"},
      {"top_logprobs", "3", "only with logprobs"},
      {"top_logprobs", "21", "expected 0 to 20"},
      {"tools", "[{}]", "is not supported"},
      {"response_format", "{\"type\": \"json_object\"}", "only {\"type\": \"text\"}"},
      {"response_format", "3", "only {\"type\": \"text\"}"},
      {"max_completion_tokens", "-1", "expected 0 or more"},
  };
  for (const Case& test : cases) expect_error(parse_chat, body, test);
}

TEST(CompletionRequest, NullsAreAbsentAndDefaultsAreOpenAis) {
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

TEST(CompletionRequest, OddButValidValues) {
  std::vector<std::string> unknown;
  const CompletionRequest request = parse_completion(
      json::parse(R"({"prompt": "", "n": 2.0, "top_p": 0, "top_k": -1, "seed": -1, "stop": ["", "a"], "foo": 1,
        "bar": {"deep": []}, "max_tokens": 0, "user": "u", "temperature": 0})"),
      unknown);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.sampling.top_k, 1);  // top_p of 0 is greedy
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.seed, UINT64_MAX);
  EXPECT_THAT(request.stop, ElementsAre("a"));
  EXPECT_THAT(unknown, ElementsAre("bar", "foo"));
}

TEST(ChatRequest, PartsAreJoinedAndNamesOfLimitsAreBothKnown) {
  std::vector<std::string> unknown;
  const ChatRequest request =
      parse_chat(json::parse(R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [
        {"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}], "max_completion_tokens": 7, "tools": [],
        "response_format": {"type": "text"}, "logprobs": true, "top_logprobs": 2})"),
                 unknown);
  ASSERT_EQ(request.messages.size(), 2u);
  EXPECT_EQ(request.messages[1].content, "bc");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_TRUE(unknown.empty());
}

TEST(Body, IsOneJsonObject) {
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
  EXPECT_THAT(message(""), HasSubstr("no body"));
  EXPECT_THAT(message("{\"a\": }"), HasSubstr("at byte 7"));
  EXPECT_THAT(message("[1]"), HasSubstr("found an array"));
  EXPECT_THAT(message("{\"a\": 1e999}"), HasSubstr("too large"));
  EXPECT_THAT(message("{\"a\": \"\xff\"}"), HasSubstr("at byte"));
  EXPECT_THAT(message(std::string(1000000, '[')), HasSubstr("at byte"));
  EXPECT_EQ(message("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}"), "");
}

}  // namespace
}  // namespace lazy::serve
