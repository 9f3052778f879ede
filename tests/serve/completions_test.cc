// Tests of POST /v1/completions over a socket. The engine is a fake engine that generates given texts.
#include <gmock/gmock.h>

#include "client.h"
#include "support/error_of.h"

namespace lazy::serve {
namespace {

using testing_support::fake_logprob;
using testing_support::FakeEngine;
using testing_support::Reply;
using testing_support::TestServer;
using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns options with which the fake engine generates `text` and then EOS.
FakeEngine::Options script(std::string text) {
  FakeEngine::Options out;
  out.next = [text = std::move(text)](const GenerationRequest&, int64_t n) -> int64_t {
    return n < static_cast<int64_t>(text.size()) ? static_cast<unsigned char>(text[static_cast<size_t>(n)]) : 257;
  };
  return out;
}

TEST(Completions, Response_HasTextAndUsage) {
  TestServer server;
  const Reply reply = server.complete({{"model", "tiny"}, {"prompt", "Hello"}, {"max_tokens", 4}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_THAT(json["id"].get<std::string>(), ::testing::StartsWith("cmpl-"));
  EXPECT_EQ(json["choices"], Json::parse(R"([{"index":0,"text":"abcd","logprobs":null,"finish_reason":"length"}])"));
  // prompt_tokens is 6: BOS and the five bytes of "Hello".
  EXPECT_EQ(json["usage"], Json::parse(R"({"prompt_tokens":6,"completion_tokens":4,"total_tokens":10})"));
  EXPECT_THAT(server.engine->seen().front().prompt, ElementsAre(256, 'H', 'e', 'l', 'l', 'o'));
}

TEST(Completions, Eos_EndsTheTextAndIsOmitted) {
  TestServer server(script("hi"));
  const Json json = server.complete({{"prompt", "x"}, {"max_tokens", 10}}).json();
  EXPECT_EQ(json["choices"][0]["text"], "hi");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
}

TEST(Completions, Prompt_AcceptsEveryForm) {
  TestServer server;
  using List = std::vector<std::vector<int64_t>>;
  const auto prompts = [&](const nlohmann::json& prompt) {
    const size_t before = server.engine->seen().size();
    const Reply reply = server.complete({{"prompt", prompt}, {"max_tokens", 1}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    List out;
    const auto seen = server.engine->seen();
    for (size_t i = before; i < seen.size(); ++i) out.push_back(seen[i].prompt);
    return out;
  };
  EXPECT_EQ(prompts("a"), (List{{256, 'a'}}));
  EXPECT_EQ(prompts(""), (List{{256}}));
  EXPECT_EQ(prompts({"a", "bc"}), (List{{256, 'a'}, {256, 'b', 'c'}}));
  EXPECT_EQ(prompts(nlohmann::json::array({97, 98})), (List{{97, 98}}));  // ids are used unchanged; no BOS is added
  EXPECT_EQ(prompts({{97}, {256, 98}}), (List{{97}, {256, 98}}));
}

TEST(Completions, SeveralPrompts_ChoicesHaveIndexAndSeed) {
  TestServer server;
  const Json json = server.complete({{"prompt", {"a", "b"}}, {"n", 2}, {"max_tokens", 2}, {"seed", 5}}).json();
  ASSERT_EQ(json["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][static_cast<size_t>(i)]["index"], i);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  std::vector<uint64_t> seeds;
  for (const auto& request : server.engine->seen()) seeds.push_back(request.sampling.seed);
  EXPECT_THAT(seeds, ElementsAre(5, 6, 5, 6));
}

TEST(Completions, SamplingFields_ReachTheEngine) {
  TestServer server;
  const Reply reply = server.complete({{"prompt", "a"},
                                       {"max_tokens", 1},
                                       {"temperature", 0.5},
                                       {"top_p", 0.9},
                                       {"top_k", 7},
                                       {"min_p", 0.1},
                                       {"presence_penalty", 1},
                                       {"frequency_penalty", -1},
                                       {"seed", 3},
                                       {"best_of", 1},
                                       {"repetition_penalty", 1.5},
                                       {"logit_bias", {{"97", -100}}},
                                       {"stop_token_ids", {5}},
                                       {"some_key", true},
                                       {"user", "me"}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const GenerationRequest request = server.engine->seen().front();
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.presence_penalty, 1);
  EXPECT_EQ(request.sampling.frequency_penalty, -1);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair<int64_t, float>(97, -100)));
  EXPECT_THAT(request.stop_tokens, ElementsAre(257, 5));
}

// Covers the request fields that lm-evaluation-harness sends and the response fields that it reads.
TEST(Scoring, EchoWithLogprobs_CoversPromptAndGeneratedToken) {
  TestServer server(script(""));  // the empty script generates EOS as the first token
  const Reply reply = server.complete({{"prompt", nlohmann::json::array({{97, 98, 99}, {100}})},
                                       {"max_tokens", 1},
                                       {"logprobs", 1},
                                       {"echo", true},
                                       {"temperature", 0},
                                       {"seed", 1234}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "stop");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"a", "b", "c", ""}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_EQ(logprobs["token_logprobs"],
            Json({nullptr, double{fake_logprob(98)}, double{fake_logprob(99)}, double{fake_logprob(257)}}));
  ASSERT_EQ(logprobs["top_logprobs"].size(), 4u);
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  // The fake engine gives all ids that are multiples of 7 the same highest log-probability, so both byte 0 and token 98
  // (b) have it. The server returns byte 0 as the most likely token.
  EXPECT_EQ(logprobs["top_logprobs"][1]["b"], logprobs["token_logprobs"][1]);
  EXPECT_EQ(logprobs["top_logprobs"][2]["c"], logprobs["token_logprobs"][2]);
  EXPECT_EQ(logprobs["top_logprobs"][2].size(), 2u);
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["logprobs"]["tokens"], Json({"d", ""}));
  // The server must write the log-probability with exactly the digits that the JSON library prints for this number.
  EXPECT_THAT(reply.body, HasSubstr(Json(double{fake_logprob(99)}).dump()));
}

TEST(Scoring, TextPrompts_GetBosOnlyOnRequest) {
  TestServer server;
  const auto prompt = [&](const nlohmann::json& more) {
    nlohmann::json body = {{"prompt", "ab"}, {"max_tokens", 1}, {"logprobs", 1}, {"echo", true}};
    body.update(more);
    EXPECT_EQ(server.complete(body).status, 200);
    return server.engine->seen().back().prompt;
  };
  EXPECT_THAT(prompt(nlohmann::json::object()), ElementsAre('a', 'b'));
  EXPECT_THAT(prompt({{"add_special_tokens", true}}), ElementsAre(256, 'a', 'b'));
  EXPECT_THAT(prompt({{"echo", false}}), ElementsAre(256, 'a', 'b'));
}

TEST(Scoring, MaxTokensZero_ScoresOnlyThePrompt) {
  TestServer server;
  const Json json = server.complete({{"prompt", "ab"}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}}).json();
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "b"}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], (Json{{"b", double{fake_logprob('b')}}}));
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
}

TEST(Scoring, TextOffsets_CountCharacters) {
  TestServer server(script("é!"));
  const Json json = server.complete({{"prompt", "aé€"}, {"max_tokens", 3}, {"logprobs", 0}, {"echo", true}}).json();
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "aé€é!");
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 1, 2, 2, 2, 3, 3, 4}));
  EXPECT_EQ(choice["logprobs"]["tokens"][1], "bytes:\\xc3");
}

TEST(Stops, StopString_AcrossTokens_EndsTheTextAndCancels) {
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(1);
  TestServer server(options);
  const Json json = server.complete({{"prompt", "x"}, {"max_tokens", 900}, {"stop", {"zzz", "def"}}}).json();
  EXPECT_EQ(json["choices"][0]["text"], "abc");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  EXPECT_TRUE(server.engine->wait_for_running(0));
}

TEST(Streams, Events_EndWithUsageAndDone) {
  TestServer server(script("héllo"));
  const Reply reply = server.complete(
      {{"prompt", "x"}, {"max_tokens", 10}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(reply.status, 200);
  EXPECT_THAT(reply.headers.at("Content-Type"), HasSubstr("text/event-stream"));
  const auto events = reply.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text, reason;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json json = Json::parse(events[i]);
    EXPECT_TRUE(json.contains("usage") && json["usage"].is_null());
    text += json["choices"][0]["text"];
    if (!json["choices"][0]["finish_reason"].is_null()) reason = json["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(text, "héllo");
  EXPECT_EQ(reason, "stop");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 7);
}

TEST(Streams, Chunks_ContainWholeCharacters) {
  FakeEngine::Options options = script("a€😀é\xff z");
  options.step = std::chrono::milliseconds(2);  // slow enough that every chunk of the stream contains one token
  TestServer server(options);
  const auto events = server.complete({{"prompt", "x"}, {"max_tokens", 40}, {"stream", true}}).events();
  std::vector<std::string> texts;
  std::string all;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    texts.push_back(Json::parse(events[i])["choices"][0]["text"]);
    all += texts.back();
  }
  EXPECT_EQ(all, "a€😀é\uFFFD z");
  EXPECT_THAT(texts, ::testing::IsSupersetOf({std::string("€"), std::string("😀")}));
}

TEST(Streams, PartialStopString_IsHeldBack) {
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(2);
  TestServer server(options);
  const auto events =
      server.complete({{"prompt", "x"}, {"max_tokens", 100}, {"stream", true}, {"stop", "defg"}}).events();
  std::string all;
  for (size_t i = 0; i + 1 < events.size(); ++i) all += Json::parse(events[i])["choices"][0]["text"];
  EXPECT_EQ(all, "abc");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Streams, EchoAndLogprobs_AreInChunks) {
  TestServer server(script("cd"));
  const auto events =
      server.complete({{"prompt", "ab"}, {"max_tokens", 5}, {"stream", true}, {"echo", true}, {"logprobs", 2}})
          .events();
  std::string text;
  Json tokens = Json::array(), offsets = Json::array();
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json json = Json::parse(events[i])["choices"][0];
    text += json["text"];
    for (const auto& token : json["logprobs"]["tokens"]) tokens.push_back(token);
    for (const auto& offset : json["logprobs"]["text_offset"]) offsets.push_back(offset);
  }
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(tokens, Json({"a", "b", "c", "d", ""}));
  EXPECT_EQ(offsets, Json({0, 1, 2, 3, 4}));
}

TEST(Streams, EngineFailure_IsAnErrorEvent) {
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(2);
  options.next = [](const GenerationRequest&, int64_t n) { return n < 3 ? 'a' : -1; };
  TestServer server(options);
  const auto events = server.complete({{"prompt", "x"}, {"max_tokens", 9}, {"stream", true}}).events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json error = Json::parse(events[events.size() - 2])["error"];
  EXPECT_EQ(error["message"], "the scripted failure");
  EXPECT_EQ(error["type"], "server_error");
  const Reply whole = server.complete({{"prompt", "x"}, {"max_tokens", 9}});
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["error"]["code"], "generation_failed");
}

TEST(Refusals, Responses_AreOpenAiErrors) {
  FakeEngine::Options options;
  options.max_waiting = 2;
  options.step = std::chrono::milliseconds(1);
  TestServer server(options);
  const auto code = [&](const nlohmann::json& body, int status) {
    const Reply reply = server.complete(body);
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json error = reply.json()["error"];
    EXPECT_TRUE(error["message"].is_string() && error["type"].is_string() && error.contains("param")) << reply.body;
    return error["code"].is_string() ? error["code"].get<std::string>() : "";
  };
  EXPECT_EQ(code({{"prompt", "x"}, {"max_tokens", 5000}}, 400), "context_length_exceeded");
  EXPECT_EQ(code({{"prompt", "x"}, {"max_tokens", INT64_MAX}}, 400), "context_length_exceeded");
  EXPECT_EQ(code({{"prompt", std::string(1200, 'x')}}, 400), "context_length_exceeded");
  EXPECT_EQ(code({{"prompt", "x"}, {"model", "other"}}, 404), "model_not_found");
  EXPECT_EQ(code({{"prompt", {258}}}, 400), "invalid_value");
  EXPECT_EQ(code({{"prompt", "x"}, {"logit_bias", {{"258", 1}}}}, 400), "invalid_value");
  EXPECT_EQ(code({{"prompt", "x"}, {"stop_token_ids", {258}}}, 400), "invalid_value");
  // The queue of the fake engine holds two sequences. One is running, so a request with two sequences does not fit.
  // After this request has been refused, neither of its sequences may remain in the queue.
  auto running = server.client();
  running.send(testing_support::Client::post_text("/v1/completions", R"({"prompt": "x", "max_tokens": 900})"));
  EXPECT_TRUE(server.engine->wait_for_running(1));
  EXPECT_EQ(code({{"prompt", "x"}, {"n", 2}, {"max_tokens", 900}}, 429), "queue_full");
  EXPECT_TRUE(server.engine->wait_for_running(1));
  const Reply full = server.complete({{"prompt", "x"}, {"n", 2}});
  EXPECT_EQ(full.headers.at("Retry-After"), "1");
  EXPECT_EQ(server.client().post("/v1/completions", std::string("{")).status, 400);
  EXPECT_EQ(server.client().post("/v1/completions", std::string("[]")).status, 400);
  EXPECT_EQ(server.client().post("/v1/completions", std::string()).status, 400);
  EXPECT_EQ(server.client().get("/v1/completions").status, 405);
  EXPECT_EQ(server.client().get("/nothing").status, 404);
}

// The request has more sequences than the queue can ever hold. The server must not answer 429, which would tell the
// client to try again.
TEST(Refusals, MoreSequencesThanTheQueueLimit_AreAnInvalidRequest) {
  FakeEngine::Options options;
  options.max_waiting = 5;
  TestServer server(options);
  const Json three{"a", "b", "c"};
  const Reply reply = server.complete({{"prompt", three}, {"n", 2}, {"max_tokens", 1}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "n");
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), Names({"--max-waiting", 3, 2, 6, 5}));
  EXPECT_EQ(server.complete({{"prompt", three}, {"n", 1}, {"max_tokens", 1}}).status, 200);
}

TEST(Cancellation, ClientDisconnect_CancelsTheRequest) {
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(1);
  options.max_request_tokens = 1000000;
  TestServer server(options);
  for (const bool stream : {true, false}) {
    auto client = server.client();
    client.send(testing_support::Client::post_text(
        "/v1/completions",
        nlohmann::json{{"prompt", "x"}, {"max_tokens", 500000}, {"stream", stream}, {"n", 2}}.dump()));
    ASSERT_TRUE(server.engine->wait_for_running(2));
    if (stream) {
      EXPECT_TRUE(client.read_until("\"a\""));
    }
    client.close();
    EXPECT_TRUE(server.engine->wait_for_running(0));
  }
  EXPECT_EQ(server.http.counters().gone, 2);
}

TEST(Cancellation, SlowReader_IsDisconnected) {
  FakeEngine::Options options;
  options.max_request_tokens = 100000000;
  HttpLimits limits;
  limits.max_backlog_bytes = 64 << 10;
  TestServer server(options, limits);
  auto client = server.client(4096);
  client.send(testing_support::Client::post_text(
      "/v1/completions",
      nlohmann::json{{"prompt", "x"}, {"max_tokens", 90000000}, {"stream", true}, {"logprobs", 5}}.dump()));
  for (int i = 0; i < 10000 && server.http.counters().gone == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(server.http.counters().gone, 1);
  EXPECT_TRUE(server.engine->wait_for_running(0));
}

TEST(Cancellation, RequestTimeout_GivesAnErrorResponse) {
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(1);
  options.max_request_tokens = 1000000;
  HttpLimits limits;
  limits.request = 0.2;
  TestServer server(options, limits);
  const Reply whole = server.complete({{"prompt", "x"}, {"max_tokens", 500000}});
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(whole.json()["error"]["code"], "request_timeout");
  const auto events = server.complete({{"prompt", "x"}, {"max_tokens", 500000}, {"stream", true}}).events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], "request_timeout");
  EXPECT_TRUE(server.engine->wait_for_running(0));
}

TEST(Completions, ReturnTokenIds_ReturnsTheGeneratedIds) {
  TestServer server;
  const nlohmann::json request = {{"prompt", "x"}, {"max_tokens", 3}, {"return_token_ids", true}};
  EXPECT_EQ(server.complete(request).json()["choices"][0]["token_ids"], Json({'a', 'b', 'c'}));
  EXPECT_FALSE(server.complete({{"prompt", "x"}}).json()["choices"][0].contains("token_ids"));
  nlohmann::json stream = request;
  stream["stream"] = true;
  Json ids = Json::array();
  const auto events = server.complete(stream).events();
  for (size_t n = 0; n + 1 < events.size(); ++n) {
    const Json event = Json::parse(events[n]);
    for (const Json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
  }
  EXPECT_EQ(ids, Json({'a', 'b', 'c'}));
}

}  // namespace
}  // namespace lazy::serve
