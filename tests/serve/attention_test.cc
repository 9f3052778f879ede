// Tests of POST /v1/attention: error handling with a fake attention service, and results with a real model and its
// engine.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "client.h"
#include "serve/attention_inspector.h"
#include "serve/openai/attention.h"
#include "sinks/attention_maps.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy::serve {
namespace {

using testing_support::Client;
using testing_support::FakeEngine;
using testing_support::Reply;
using Json = nlohmann::ordered_json;

// A fake service. It answers a request with fixed results or, if `keep` is set, stores the request without answering
// it.
class FakeAttention final : public AttentionService {
 public:
  Shape shape() const override { return {.layers = 64, .heads = 64, .max_tokens = 1024}; }
  GenerationService::Submission read(AttentionRequest request, std::function<void(AttentionResult)> done) override {
    const std::scoped_lock lock(mutex_);
    if (refusal != GenerationService::Refusal::none) return {0, refusal, "refused"};
    if (keep) {
      kept_ = std::move(done);
    } else {
      const size_t count = (request.tokens.size() - static_cast<size_t>(request.first)) * 64 * 64;
      AttentionReport report;
      report.released.assign(count, 0.300049F);
      report.sink.assign(count, -1e-9F);
      report.alive.assign(count, 3);
      report.released.front() = report.sink.front() = report.alive.front() = NAN;
      report.rows.assign(request.rows.size(), {0, 0.123456F, 1.23456e-7F});
      if (!report.rows.empty()) report.rows.back().clear();
      done({.reason = reason, .message = "why", .report = std::move(report)});
    }
    return {7, GenerationService::Refusal::none, ""};
  }
  void cancel(GenerationService::Id id) override {
    const std::scoped_lock lock(mutex_);
    cancelled_ = id;
    if (kept_) kept_({.reason = FinishReason::cancelled, .message = {}, .report = {}});
    kept_ = nullptr;
  }
  bool wait_for_cancel() {
    return testing_support::wait_for(mutex_, [&] { return cancelled_ == 7; });
  }
  bool wait_for_question() {
    return testing_support::wait_for(mutex_, [&] { return kept_ != nullptr; });
  }

  GenerationService::Refusal refusal = GenerationService::Refusal::none;
  FinishReason reason = FinishReason::stop;
  bool keep = false;

 private:
  std::mutex mutex_;
  std::function<void(AttentionResult)> kept_;
  GenerationService::Id cancelled_ = 0;
};

// A server with two models, of which only one supports attention requests.
struct FakeServer {
  explicit FakeServer(const HttpLimits& limits = {})
      : api({seen(), testing_support::fake_model(engine, "blind")}, {}),
        http("127.0.0.1", 0, 1, limits,
             [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); }) {}
  ServedModel seen() {
    ServedModel model = testing_support::fake_model(engine);
    model.attention = &attention;
    return model;
  }
  Client client() { return Client(http.port()); }
  Reply ask(nlohmann::json body) {
    body.emplace("model", "tiny");
    return client().post("/v1/attention", body);
  }
  FakeEngine engine;
  FakeAttention attention;
  Api api;
  HttpServer http;
};

TEST(Attention, Response_HasRoundedNumbers) {
  FakeServer server;
  const Json json = server.ask({{"tokens", {1, 2, 3}}, {"first", 1}, {"rows", {{0, 3}, {nullptr, nullptr}}}}).json();
  EXPECT_EQ(json["object"], "attention");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(json["first"], 1);
  EXPECT_EQ(json["layers"], 64);
  EXPECT_EQ(json["heads"], 64);
  for (const char* name : {"released", "sink", "alive"}) {
    ASSERT_EQ(json[name].size(), 2U);
    ASSERT_EQ(json[name][1].size(), 64U);
    ASSERT_EQ(json[name][1][63].size(), 64U);
    EXPECT_TRUE(json[name][0][0][0].is_null());
  }
  EXPECT_EQ(json["released"][1][0][0].dump(), "0.3");
  EXPECT_EQ(json["sink"][1][0][0].dump(), "0.0");
  EXPECT_EQ(json["alive"][1][0][0].dump(), "3");
  EXPECT_EQ(json["rows"][0].dump(), R"({"layer":0,"head":3,"weights":[0.0,0.1235,1.235e-07]})");
  EXPECT_EQ(json["rows"][1].dump(), R"({"layer":null,"head":null,"weights":null})");
  // by default, the response describes only the last of the three tokens
  EXPECT_EQ(server.ask({{"tokens", {1, 2, 3}}}).json()["first"], 2);
}

TEST(Attention, InvalidRequest_ErrorNamesTheField) {
  FakeServer server;
  const auto error = [&](const nlohmann::json& body, const char* param, const NamesMatcher& names) {
    const Reply reply = server.ask(body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json found = reply.json()["error"];
    EXPECT_EQ(found["param"], param) << reply.body;
    EXPECT_THAT(found["message"].get<std::string>(), names);
    return found["code"].get<std::string>();
  };
  EXPECT_EQ(error({}, "tokens", Names({"tokens"})), "missing_field");
  error({{"tokens", "x"}}, "tokens", Names({"tokens", "array", "string"}));
  error({{"tokens", Json::array()}}, "tokens", Names({"tokens"}));
  error({{"tokens", {1, -1}}}, "tokens", Names({"tokens", 0, -1}));
  error({{"tokens", {1, 258}}}, "tokens", Names({"tokens", 258}));
  error({{"tokens", {1, 2}}, {"first", 2}}, "first", Names({"first", 0, 1, 2}));
  error({{"tokens", {1}}, {"rows", 3}}, "rows", Names({"rows", "layer", "head", "integer"}));
  error({{"tokens", {1}}, {"rows", {1, 2}}}, "rows", Names({"rows", "layer", "head"}));
  error({{"tokens", {1}}, {"rows", {{0, 1.5}}}}, "rows", Names({"rows", "integer", "number"}));
  error({{"tokens", {1}}, {"rows", {{64, 0}}}}, "rows", Names({"rows", std::string("[64, 0]"), 64}));
  error({{"tokens", {1}}, {"rows", {{0, 64}}}}, "rows", Names({"rows", std::string("[0, 64]"), 64}));
  error({{"tokens", {1}}, {"rows", std::vector<std::vector<int>>(65, {0, 0})}}, "rows", Names({"rows", 64, 65}));
  EXPECT_EQ(error({{"tokens", std::vector<int>(1025, 1)}}, "tokens", Names({"tokens", 1024, 1025})),
            "context_length_exceeded");
  error({{"tokens", std::vector<int>(200, 1)}, {"first", 0}}, "first", Names({"first", 2457600, 1048576}));
  EXPECT_EQ(error({{"model", "blind"}, {"tokens", {1}}}, "model", Names({"blind"})), "no_attention");
  EXPECT_EQ(server.ask({{"model", "third"}, {"tokens", {1}}}).status, 404);
  EXPECT_EQ(server.client().get("/v1/attention").status, 405);
}

TEST(Attention, EngineErrors_AreReturnedToTheClient) {
  FakeServer server;
  const nlohmann::json good = {{"tokens", {1}}};
  server.attention.reason = FinishReason::failed;
  EXPECT_EQ(server.ask(good).status, 500);
  EXPECT_EQ(server.ask(good).json()["error"]["message"], "why");
  server.attention.reason = FinishReason::cancelled;
  EXPECT_EQ(server.ask(good).status, 503);
  server.attention.refusal = GenerationService::Refusal::queue_full;
  const Reply full = server.ask(good);
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.headers.contains("Retry-After"));
  server.attention.refusal = GenerationService::Refusal::stopping;
  EXPECT_EQ(server.ask(good).status, 503);
  server.attention.refusal = GenerationService::Refusal::none;
  server.api.drain();
  EXPECT_EQ(server.ask(good).status, 503);
}

TEST(Attention, ClientDisconnect_CancelsTheRequest) {
  FakeServer server;
  server.attention.keep = true;
  Client client = server.client();
  client.send(Client::post_text("/v1/attention", R"({"model": "tiny", "tokens": [1]})"));
  EXPECT_TRUE(server.attention.wait_for_question());
  client.close();
  EXPECT_TRUE(server.attention.wait_for_cancel());
}

TEST(Attention, RequestTimeout_CancelsTheRequest) {
  HttpLimits limits;
  limits.request = 0.2;
  FakeServer server(limits);
  server.attention.keep = true;
  EXPECT_EQ(server.ask({{"tokens", {1}}}).status, 504);
  EXPECT_TRUE(server.attention.wait_for_cancel());
}

TEST(Attention, ModelList_DescribesAttention) {
  FakeServer server;
  const Json list = server.client().get("/v1/models").json()["data"];
  EXPECT_EQ(list[0]["attention"], Json::parse(R"({"layers": 64, "heads": 64, "max_tokens": 1024})"));
  EXPECT_FALSE(list[1].contains("attention"));
}

// A model with its engine and server, set up as in `lazy serve`.
struct RealServer {
  RealServer()
      : model(config(), 3),
        engine(model, {.cache_bytes = 8 << 20, .page_tokens = 8, .chunk = 16, .rows = 4}),
        inspector(engine, model),
        api({served()}, {}),
        http("127.0.0.1", 0, 1, {},
             [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); }) {}
  static ModelConfig config() {
    ModelConfig c = small_config("elastic");
    c.vocab_size = 258;
    c.max_length = 4096;
    return c;
  }
  ServedModel served() {
    ServedModel out;
    out.id = "tiny";
    out.tokenizer = make_bytes_tokenizer();
    out.engine = &engine;
    out.attention = &inspector;
    out.vocab_size = 258;
    return out;
  }
  LanguageModel model;
  Engine engine;
  AttentionInspector inspector;
  Api api;
  HttpServer http;
};

TEST(Attention, Weights_MatchDirectComputation) {
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < 40; ++n) ids.push_back((n * 37 + 5) % 258);
  std::vector<sinks::WeightRows> expected;  // attention weights of all layers and heads
  {
    LanguageModel model(RealServer::config(), 3);
    std::vector<std::pair<int64_t, int64_t>> heads;
    for (int64_t n = 0; n < 12; ++n) heads.emplace_back(n / 4, n % 4);
    expected = sinks::attention_weights(model, at::tensor(ids, at::kLong), heads);
  }
  RealServer server;
  const nlohmann::json text = {{"prompt", ids}, {"max_tokens", 50}, {"temperature", 0}, {"return_token_ids", true}};
  const auto alone = Client(server.http.port()).post("/v1/completions", text).json()["choices"][0]["token_ids"];
  ASSERT_EQ(alone.size(), 50U);
  Client writer(server.http.port());  // this client receives a stream while the server answers the attention request
  writer.send(Client::post_text("/v1/completions", text.dump()));

  const Json json =
      Client(server.http.port())
          .post("/v1/attention",
                nlohmann::json{{"tokens", ids}, {"first", 10}, {"rows", {{2, 1}, {1, nullptr}, {nullptr, nullptr}}}})
          .json();
  ASSERT_EQ(json["released"].size(), 30U);
  for (size_t query = 10; query < 40; ++query) {
    for (size_t n = 0; n < 12; ++n) {
      const std::vector<double>& weights = expected[n][query];
      double sum = 0, alive = 0;
      for (const double weight : weights) sum += weight, alive += weight > 0 ? 1 : 0;
      const auto number = [&](const char* name) { return json[name][query - 10][n / 4][n % 4].get<double>(); };
      EXPECT_NEAR(number("released"), 1 - sum, 6e-5);
      EXPECT_NEAR(number("sink"), weights[0], 6e-5);
      EXPECT_NEAR(number("alive"), alive, 1);  // a weight near zero may be counted differently because of rounding
    }
  }
  const auto mean = [&](size_t begin, size_t end, size_t key) {
    double sum = 0;
    for (size_t n = begin; n < end; ++n) sum += expected[n][39][key];
    return sum / static_cast<double>(end - begin);
  };
  const std::pair<size_t, size_t> chosen[] = {{9, 10}, {4, 8}, {0, 12}};
  for (size_t row = 0; row < 3; ++row) {
    ASSERT_EQ(json["rows"][row]["weights"].size(), 40U);
    for (size_t key = 0; key < 40; ++key) {
      const double value = mean(chosen[row].first, chosen[row].second, key);
      EXPECT_NEAR(json["rows"][row]["weights"][key].get<double>(), value, 1e-6 + 1e-3 * value);
    }
  }
  EXPECT_EQ(writer.read_reply().json()["choices"][0]["token_ids"], alone);
}

}  // namespace
}  // namespace lazy::serve
