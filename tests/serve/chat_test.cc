// Tests of POST /v1/chat/completions. Rendering needs Python with jinja2; without it, these tests are skipped.
#include <gmock/gmock.h>

#include <cstdlib>

#include "client.h"
#include "support/error_of.h"

namespace lazy::serve {
namespace {

using testing_support::Client;
using testing_support::FakeEngine;
using testing_support::Reply;
using Json = nlohmann::ordered_json;

// A chat template in the style of Hugging Face's ChatML templates.
const char* const kTemplate =
    R"({%- if messages[0].role == 'tool' %}{{ raise_exception('tools are unknown') }}{% endif %}
{% for message in messages %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token + '\n' -}}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|assistant|>' -}}
{% endif %})";

std::shared_ptr<ChatTemplate> make_template(const std::string& source) {
  if (*LAZY_TEST_PYTHON) ::setenv("LAZY_PYTHON", LAZY_TEST_PYTHON, 1);
  return std::make_shared<ChatTemplate>(source, Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}

// Renders messages given as (role, content) pairs; `prompt` sets add_generation_prompt.
std::string render(ChatTemplate& chat, const std::vector<std::pair<std::string, std::string>>& messages, bool prompt) {
  Json all = Json::array();
  for (const auto& [role, content] : messages) all.push_back({{"role", role}, {"content", content}});
  return chat.render(all, {{"add_generation_prompt", prompt}});
}

#define SKIP_WITHOUT_JINJA()                                                                 \
  try {                                                                                      \
    make_template("x");                                                                      \
  } catch (const Error& e) {                                                                 \
    if (std::string(e.what()).find("jinja2") != std::string::npos) GTEST_SKIP() << e.what(); \
    throw;                                                                                   \
  }

TEST(ChatTemplates, Rendering_MatchesTransformers) {
  SKIP_WITHOUT_JINJA();
  const auto chat = make_template(kTemplate);
  EXPECT_EQ(render(*chat, {{"user", " hé\n"}, {"assistant", "you"}}, true),
            "<|user|>hé</s>\n<|assistant|>you</s>\n<|assistant|>");
  EXPECT_EQ(render(*chat, {{"user", "hi"}}, false), "<|user|>hi</s>\n");
  const std::string refusal = error_of([&] { render(*chat, {{"tool", "x"}}, true); });
  // the error contains the message that the template raises
  EXPECT_THAT(refusal, Names({std::string("tools are unknown")}));
  EXPECT_EQ(render(*chat, {{"user", "hi"}}, false), "<|user|>hi</s>\n");  // rendering still works
  EXPECT_EQ(render(*make_template("{{ messages | tojson }}"), {{"user", "<é>"}}, true),
            R"([{"role": "user", "content": "<é>"}])");
}

TEST(ChatTemplates, Errors_AreOneLine) {
  SKIP_WITHOUT_JINJA();
  EXPECT_THAT(error_of([] { make_template("{% if %}"); }), Names({"template", "line", 1}));
  const auto generation =
      make_template("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}");
  EXPECT_EQ(render(*generation, {{"user", "x"}, {"user", "y"}}, true), "x");
  const auto escape = make_template("{{ messages[0].__class__.__mro__ }}");
  // the sandbox of jinja2 rejects access to such attributes
  EXPECT_THROW(render(*escape, {{"user", "x"}}, true), Error);
  ::setenv("LAZY_PYTHON", "/no/such/python", 1);
  EXPECT_THROW(ChatTemplate("x", Json::object()), Error);
}

// If an assistant message only calls tools, its content is null, and the arguments of the calls are JSON text.
// Templates expect different forms, so the server converts the message to the form that the template supports.
TEST(ChatTemplates, ToolHistory_HasTheFormThatTheTemplateSupports) {
  SKIP_WITHOUT_JINJA();
  const auto rendered = [](const std::string& source, const char* message) {
    return make_template(source)->render(Json::parse(message), Json::object());
  };
  const char* const call = R"([{"role": "assistant", "content": null,
      "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": null}"}}]}])";
  // Templates that fail for null or print it receive an empty string as the content.
  EXPECT_EQ(rendered("{{ '<' + messages[0].content + '>' }}", call), "<>");
  EXPECT_EQ(rendered("<{{ messages[0].content }}>", call), "<>");
  EXPECT_EQ(rendered("{{ '<' ~ messages[0].content ~ '>' }}", call), "<>");
  EXPECT_EQ(rendered("<{{ messages[0]['content'] + '' }}>", R"([{"role": "assistant", "tool_calls": []}])"), "<>");
  // Templates that distinguish null from an empty string receive null.
  EXPECT_EQ(rendered("{% if messages[0].content is none %}call{% endif %}", call), "call");
  const std::string arguments = "messages[0].tool_calls[0].function.arguments";
  EXPECT_EQ(rendered("{{ " + arguments + " | tojson }}", call), R"({"b": 1, "a": null})");
  EXPECT_EQ(rendered("{% for key in " + arguments + " %}{{ key }};{% endfor %}", call), "b;a;");
  EXPECT_EQ(rendered("{{ '<' + " + arguments + " + '>' }}", call), R"(<{"b": 1, "a": null}>)");
  // An error names the line of the template.
  const std::string problem = error_of([&] { rendered("{% set x = 1 %}\n\n{{ 1 + messages[0].role }}", call); });
  EXPECT_THAT(problem, Names({std::string("template"), std::string("line 3")}));
  EXPECT_THAT(problem, ::testing::Not(::testing::AnyOf(::testing::HasSubstr("Traceback"), ::testing::HasSubstr("\n"))));
}

TEST(ChatTemplates, EndlessTemplate_IsStopped) {
  SKIP_WITHOUT_JINJA();
  const auto chat = make_template(
      "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
      "{% endfor %}{% endif %}done");
  EXPECT_THROW(render(*chat, {{"user", "loop"}}, true), RunError);
  EXPECT_EQ(render(*chat, {{"user", "x"}}, true), "done");  // the next rendering starts a new Python process
}

struct ChatServer {
  explicit ChatServer(std::shared_ptr<ChatTemplate> chat)
      : api({model(std::move(chat))}, {}),
        http("127.0.0.1", 0, 1, {},
             [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); }) {}
  ServedModel model(std::shared_ptr<ChatTemplate> chat) {
    ServedModel out = testing_support::fake_model(engine);
    out.chat = std::move(chat);
    return out;
  }
  Reply post(const nlohmann::json& body) { return Client(http.port()).post("/v1/chat/completions", body); }
  FakeEngine engine;
  Api api;
  HttpServer http;
};

const nlohmann::json kMessages = {{{"role", "user"}, {"content", "hi"}}};

TEST(Chat, MissingTemplate_ErrorNamesTheFiles) {
  ChatServer server(nullptr);
  const Reply reply = server.post({{"messages", kMessages}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "no_chat_template");
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), Names({"chat_template", "tokenizer_config.json"}));
}

// The template must receive the same variables from a request as in transformers.
TEST(Chat, TemplateVariables_MatchTransformers) {
  SKIP_WITHOUT_JINJA();
  const auto prompt_of = [](const std::string& source, nlohmann::json body) {
    ChatServer server(make_template(source + "X"));
    body["max_tokens"] = 0;
    const Reply reply = server.post(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    // prompt_tokens without BOS, which is the number of bytes of the rendered prompt
    return reply.status == 200 ? reply.json()["usage"]["prompt_tokens"].get<int64_t>() - 1 : -1;
  };
  nlohmann::json body = {
      {"messages", {{{"role", "user"}, {"content", "hi"}, {"name", "Ada"}, {"reasoning_content", "why"}}}}};
  EXPECT_EQ(prompt_of("{% if tools is not none %}TOOLS{% endif %}", body), 0);
  EXPECT_EQ(prompt_of("{% if documents is not none %}DOCUMENTS{% endif %}", body), 0);
  EXPECT_EQ(prompt_of("{{ messages[0].name }}", body), 3);
  EXPECT_EQ(prompt_of("{{ messages[0].reasoning_content }}", body), 3);
  EXPECT_EQ(prompt_of("{% if pad_token is defined %}PAD{% endif %}", body), 0);
  EXPECT_EQ(prompt_of("{% if enable_thinking %}think{% endif %}", body), 0);
  body["chat_template_kwargs"] = {{"enable_thinking", true}};
  EXPECT_EQ(prompt_of("{% if enable_thinking %}think{% endif %}", body), 5);
  body["documents"] = {{{"title", "abcd"}}};
  EXPECT_EQ(prompt_of("{{ documents[0].title }}", body), 4);
  body["messages"].push_back(nlohmann::json::parse(
      R"({"role": "assistant", "content": null,
          "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]})"));
  body["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", "c"}, {"content", {{{"type", "text"}, {"text", "4"}}}}});
  EXPECT_EQ(prompt_of("{{ messages[1].tool_calls[0].function.name }}{{ messages[2].content }}", body), 2);
  // the template prints "True", which has four bytes
  EXPECT_EQ(prompt_of("{{ messages[1].content is none }}", body), 4);
}

TEST(Chat, ToolsAndReservedNames_AreRefused) {
  SKIP_WITHOUT_JINJA();
  ChatServer server(make_template("x"));
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    const Reply reply = server.post({{"messages", kMessages}, {key, value}});
    EXPECT_EQ(reply.status, 400) << key;
    EXPECT_EQ(reply.json()["error"]["param"], key);
  };
  refused("tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}});
  refused("chat_template_kwargs", {{"messages", nlohmann::json::array()}});
  refused("chat_template_kwargs", 3);
  refused("documents", "x");
}

TEST(Chat, FullContext_ErrorNamesLengthAndLimit) {
  SKIP_WITHOUT_JINJA();
  ChatServer server(make_template("{{ messages[0].content }}"));
  const auto post = [&](size_t length, nlohmann::json body) {
    body["messages"] = {{{"role", "user"}, {"content", std::string(length, 'x')}}};
    return server.post(body);
  };
  for (const size_t length : {size_t{1000}, size_t{1200}}) {
    const Reply reply = post(length, nlohmann::json::object());
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
    const auto message = reply.json()["error"]["message"].get<std::string>();
    EXPECT_THAT(message, Names({"messages", length, 1000}));
    EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("max_tokens")));  // the client has not sent max_tokens
  }
  const Reply reply = post(990, {{"max_tokens", 11}});
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), Names({"messages", 990, 1000, "max_tokens", 11}));
  EXPECT_EQ(post(999, nlohmann::json::object()).json()["usage"]["completion_tokens"], 1);
  EXPECT_EQ(post(1000, {{"max_tokens", 0}}).status, 200);
}

TEST(Chat, BrokenTemplate_IsAServerError) {
  FakeEngine engine;
  ServedModel model = testing_support::fake_model(engine);
  model.chat_problem = "serve: chat template: line 1: unexpected end of template";
  Api api({model}, {});
  HttpServer http("127.0.0.1", 0, 1, {},
                  [&](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); });
  const Reply reply = Client(http.port()).post("/v1/chat/completions", nlohmann::json{{"messages", kMessages}});
  // status 500 (server error), because the client cannot correct the template of the model
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(reply.json()["error"]["code"], "chat_template_error");
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), Names({std::string("line 1")}));
  const Reply health = Client(http.port()).get("/health");  // the server still accepts requests for completions
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.json(), (Json{{"status", "ok"}, {"chat_unavailable", {{model.id, model.chat_problem}}}}));
  EXPECT_THAT(Client(http.port()).get("/metrics").body,
              ::testing::HasSubstr("\nlazy_chat_template_unusable{model=\"" + model.id + "\"} 1\n"));
}

TEST(Chat, CompletionAndStream_HaveOpenAiFormat) {
  SKIP_WITHOUT_JINJA();
  ChatServer server(make_template(kTemplate));
  const Reply reply =
      server.post({{"messages", kMessages}, {"max_tokens", 3}, {"logprobs", true}, {"top_logprobs", 1}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"], Json::parse(R"({"role": "assistant", "content": "abc"})"));
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"][0]["token"], "a");
  EXPECT_EQ(json["usage"]["prompt_tokens"], std::string("<|user|>hi</s>\n<|assistant|>").size());  // without BOS
  const auto events = server.post({{"messages", kMessages}, {"max_completion_tokens", 4}, {"stream", true}}).events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json first = Json::parse(events.front());
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    text += Json::parse(events[i])["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "length");
  // Without a limit, the text may use the rest of the context.
  EXPECT_EQ(server.post({{"messages", kMessages}}).json()["usage"]["total_tokens"], 1000);
}

}  // namespace
}  // namespace lazy::serve
