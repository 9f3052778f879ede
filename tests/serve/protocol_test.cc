// Tests of OpenAI's API other than completions: log-probabilities, API keys, models, tokenizers and metrics.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>

#include "client.h"
#include "serve/openai/logprobs.h"
#include "support/error_of.h"

namespace lazy::serve {
namespace {

using testing_support::Client;
using testing_support::FakeEngine;
using testing_support::TestServer;
using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A tokenizer in which several ids have the same text.
class FewTexts final : public Tokenizer {
 public:
  FewTexts() {
    table_.bos = 8;
    table_.eos = 9;
  }
  std::vector<int32_t> encode(std::string_view text) const override { return std::vector<int32_t>(text.size(), 1); }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    for (const int32_t id : ids) out += piece(id);
    return out;
  }
  std::string piece(int32_t id) const override { return id >= 8 ? "" : id % 2 == 0 ? "even" : " odd"; }
  int64_t vocab_size() const override { return 10; }
  uint64_t fingerprint() const override { return 1; }
  std::string kind() const override { return "few"; }
  void save(const fs::path&) const override {}
};

TEST(Logprobs, TokensWithEqualTexts_AreDistinguished) {
  const FewTexts tokenizer;
  const std::vector<std::pair<int64_t, float>> likely = {{2, -0.5f}, {1, -1.0f}, {4, -2.0f}, {3, -3.0f}};
  const auto top = [&](int64_t id, float logprob, int count) {
    return top_logprobs(tokenizer, {.id = id, .logprob = logprob, .likely = likely}, count).dump();
  };
  EXPECT_EQ(top(2, -0.5f, 2), R"({"even":-0.5," odd":-1.0})");
  EXPECT_EQ(top(2, -0.5f, 4), R"({"even":-0.5," odd":-1.0,"token_id:4":-2.0,"token_id:3":-3.0})");
  EXPECT_EQ(top(4, -2.0f, 4), R"({"token_id:2":-0.5," odd":-1.0,"even":-2.0,"token_id:3":-3.0})");
  // The sampled token 6 is not among the two most likely tokens and is added to them.
  EXPECT_EQ(top(6, -9.0f, 2), R"({"even":-9.0,"token_id:2":-0.5," odd":-1.0})");
  EXPECT_EQ(top(2, -0.5f, 0), R"({"even":-0.5})");
  EXPECT_EQ(top(12, -1.5f, 0), R"({"":-1.5})");  // the tokenizer has no text for id 12, which only the model has
}

TEST(Logprobs, InfiniteValues_AreFiniteJson) {
  EXPECT_EQ(logprob_json(-INFINITY).dump(), "-9999.0");
  EXPECT_EQ(logprob_json(NAN).dump(), "null");
  EXPECT_EQ(logprob_json(-0.1f).dump(), Json(double{-0.1f}).dump());
}

TEST(Logprobs, Offsets_OmitTheFirstSpaceOfPieces) {
  const FewTexts tokenizer;
  // The text of these tokens is "odd even". The pieces of the tokenizer are " odd" and "even".
  LogprobArrays arrays(tokenizer, 0, 1);
  for (const int64_t id : {8, 1, 2, 9}) arrays.add({.id = id, .logprob = -1, .likely = {}}, id != 9);
  const Json json = arrays.take();
  EXPECT_EQ(json["text_offset"], Json({0, 0, 3, 7}));
  EXPECT_TRUE(arrays.empty());
}

TEST(Logprobs, ChatLogprobs_AreObjects) {
  const FewTexts tokenizer;
  const Json json = chat_logprob(tokenizer, {.id = 1, .logprob = -1, .likely = {{2, -0.5f}, {1, -1.0f}}}, 1);
  EXPECT_EQ(json, Json::parse(R"({"token": " odd", "logprob": -1.0, "bytes": [32, 111, 100, 100],
    "top_logprobs": [{"token": "even", "logprob": -0.5, "bytes": [101, 118, 101, 110]}]})"));
}

fs::path scratch(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("serve-{}-{}", ::getpid(), name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

TEST(ApiKeys, FromFile_ReadsKeys) {
  const fs::path path = scratch("keys") / "keys.txt";
  write(path, "# ours\n\n  one  \r\ntwo\n");
  const ApiKeys keys = ApiKeys::from_file(path);
  EXPECT_TRUE(keys.accepts("Bearer one"));
  EXPECT_TRUE(keys.accepts("BEARER two "));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "one", "Bearer # ours"}) {
    EXPECT_FALSE(keys.accepts(wrong)) << wrong;
  }
  EXPECT_TRUE(ApiKeys().accepts(""));
  write(path, "# none\n");
  EXPECT_THAT(error_of([&] { ApiKeys::from_file(path); }), Names({path.string()}));
  write(path, "one\ntwo words\n");
  EXPECT_THAT(error_of([&] { ApiKeys::from_file(path); }), Names({path.string(), 2}));
}

TEST(ChatTemplates, FromFolder_ReadsTheTemplate) {
  const fs::path folder = scratch("info");
  EXPECT_EQ(read_chat_template(folder), "");
  write(folder / "tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(read_chat_template(folder), "d");
  write(folder / "tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(error_of([&] { read_chat_template(folder); }), Names({"tokenizer_config.json", "chat_template", 3}));
  write(folder / "tokenizer_config.json", "[");
  EXPECT_THAT(error_of([&] { read_chat_template(folder); }), Names({"tokenizer_config.json", "JSON"}));
  write(folder / "chat_template.jinja", "file");
  EXPECT_EQ(read_chat_template(folder), "file");
}

// The `bytes` tokenizer with names for BOS and EOS and a special token for the letter A.
class NamedBytes final : public Tokenizer {
 public:
  NamedBytes() {
    table_ = bytes_->tokens();
    table_.added = {{.id = 256, .content = "<s>", .special = true},
                    {.id = 257, .content = "</s>", .special = true},
                    {.id = 65, .content = "<x>", .special = true}};
    table_.texts = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    table_.tokenizer_class = "T";
    table_.index();
  }
  std::vector<int32_t> encode(std::string_view text) const override {
    if (before_encode) before_encode();
    return bytes_->encode(text);
  }
  std::function<void()> before_encode;
  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    for (const int32_t id : ids) out += piece(id);
    return out;
  }
  std::string piece(int32_t id) const override {
    for (const AddedToken& token : table_.added) {
      if (token.id == id) return token.content;
    }
    return bytes_->piece(id);
  }
  int64_t vocab_size() const override { return bytes_->vocab_size(); }
  uint64_t fingerprint() const override { return 1; }
  std::string kind() const override { return "named bytes"; }
  void save(const fs::path&) const override {}

 private:
  std::unique_ptr<Tokenizer> bytes_ = load_tokenizer("bytes");
};

// Two models that use the same engine.
struct TwoModels {
  TwoModels()
      : api({named("first"), named("org/second")}, {}),
        http("127.0.0.1", 0, 1, {},
             [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); }) {}
  ServedModel named(const std::string& id) {
    ServedModel model = testing_support::fake_model(engine, id);
    model.tokenizer = std::make_shared<NamedBytes>();
    model.special_tokens = special_tokens_of(*model.tokenizer);
    return model;
  }
  FakeEngine engine;
  Api api;
  HttpServer http;
};

TEST(Models, Models_AreListedAndSelected) {
  TwoModels server;
  Client client(server.http.port());
  const Json list = client.get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][1], Json::parse(R"({"id": "org/second", "object": "model", "created": 1700000000,
    "owned_by": "lazy", "max_model_len": 1000})"));
  EXPECT_EQ(client.get("/v1/models/org/second").json()["id"], "org/second");
  EXPECT_EQ(client.get("/v1/models/org%2Fsecond").json()["id"], "org/second");
  const Json missing = client.get("/v1/models/third").json()["error"];
  EXPECT_EQ(missing["code"], "model_not_found");
  EXPECT_THAT(missing["message"].get<std::string>(), Names({"third", "first", "org/second"}));
  const auto status = [&](const nlohmann::json& body) { return client.post("/v1/completions", body).status; };
  EXPECT_EQ(status({{"model", "first"}, {"prompt", "x"}}), 200);
  EXPECT_EQ(status({{"model", "org/second"}, {"prompt", "x"}}), 200);
  EXPECT_EQ(status({{"model", "third"}, {"prompt", "x"}}), 404);
  EXPECT_EQ(status({{"prompt", "x"}}), 400);
}

TEST(Tokenizers, TokenizeAndDetokenize_Work) {
  TwoModels server;
  Client client(server.http.port());
  const auto tokens = [&](nlohmann::json body) {
    body["model"] = "first";
    return client.post("/tokenize", body).json()["tokens"];
  };
  EXPECT_EQ(tokens({{"prompt", "ab"}}), Json({256, 97, 98}));
  EXPECT_EQ(tokens({{"prompt", "ab"}, {"add_special_tokens", false}}), Json({97, 98}));
  EXPECT_EQ(tokens({{"prompt", "<s>ab"}}), Json({256, 97, 98}));  // BOS is not added twice
  EXPECT_EQ(tokens({{"prompt", "</s>"}, {"add_special_tokens", false}}), Json({257}));
  EXPECT_EQ(tokens({{"prompt", "a</s>b<x>"}, {"add_special_tokens", false}}), Json({97, 257, 98, 65}));
  const Json full =
      client.post("/tokenize", nlohmann::json{{"model", "first"}, {"prompt", "é"}, {"return_token_strs", true}}).json();
  EXPECT_EQ(full["count"], 3);
  EXPECT_EQ(full["max_model_len"], 1000);
  EXPECT_EQ(full["token_strs"], Json({"<s>", "bytes:\\xc3", "bytes:\\xa9"}));
  const auto text = [&](const nlohmann::json& ids) {
    return client.post("/detokenize", nlohmann::json{{"model", "first"}, {"tokens", ids}});
  };
  EXPECT_EQ(text({97, 98}).json()["prompt"], "ab");
  EXPECT_EQ(text({0xff}).json()["prompt"], "\uFFFD");
  EXPECT_EQ(text({258}).status, 400);
  EXPECT_EQ(text("x").status, 400);
  EXPECT_EQ(client.post("/tokenize", nlohmann::json{{"model", "first"}}).json()["error"]["param"], "prompt");
  const Json info = client.get("/tokenizer_info?model=first").json();
  EXPECT_EQ(info["eos_token"], "</s>");
  EXPECT_EQ(info["eos_token_id"], 257);
  EXPECT_TRUE(info["pad_token"].is_null());
  EXPECT_TRUE(info["chat_template"].is_null());
  EXPECT_EQ(client.get("/tokenizer_info").status, 400);
}

// The server has one thread for connections. Tokenizing a long text must not block it.
TEST(Tokenizers, LongText_DoesNotDelayOtherConnections) {
  TwoModels server;
  std::latch begun(1), released(1);
  const auto slow = std::make_shared<NamedBytes>();
  slow->before_encode = [&] {
    begun.count_down();
    released.wait();
  };
  ServedModel model = server.named("slow");
  model.tokenizer = slow;
  Api api({model, server.named("other")}, {});
  HttpServer http("127.0.0.1", 0, 1, {},
                  [&](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); });
  Client waiting(http.port());
  waiting.send(Client::post_text(
      "/tokenize", nlohmann::json{{"model", "slow"}, {"prompt", "long"}, {"add_special_tokens", false}}.dump()));
  begun.wait();
  EXPECT_EQ(Client(http.port()).get("/health").status, 200);
  EXPECT_EQ(Client(http.port()).post("/tokenize", nlohmann::json{{"model", "other"}, {"prompt", "a"}}).status, 200);
  released.count_down();
  EXPECT_EQ(waiting.read_reply().json()["count"], 4);
}

TEST(Metrics, Metrics_HavePrometheusFormat) {
  TestServer server;
  server.complete({{"prompt", "x"}, {"max_tokens", 3}});
  server.complete({{"prompt", 3}});
  server.client().get("/nothing");
  const testing_support::Reply reply = server.client().get("/metrics");
  EXPECT_THAT(reply.headers.at("Content-Type"), HasSubstr("text/plain; version=0.0.4"));
  for (const char* line :
       {"lazy_http_requests_total{endpoint=\"/v1/completions\",status=\"200\"} 1\n",
        "lazy_http_requests_total{endpoint=\"/v1/completions\",status=\"400\"} 1\n",
        "lazy_http_requests_total{endpoint=\"other\",status=\"404\"} 1\n",
        "lazy_chat_template_unusable{model=\"tiny\"} 0\n", "lazy_generated_tokens_total{model=\"tiny\"} 3\n",
        "lazy_time_to_first_token_seconds_count{model=\"tiny\"} 1\n",
        "lazy_time_between_tokens_seconds_count{model=\"tiny\"} 2\n",
        "lazy_time_between_tokens_seconds_bucket{model=\"tiny\",le=\"+Inf\"} 2\n",
        "lazy_cache_pages{model=\"tiny\"} 10\n", "lazy_requests_waiting{model=\"tiny\"} 0\n"}) {
    EXPECT_THAT(reply.body, HasSubstr(line));
  }
  EXPECT_EQ(model_label("a\"b\\\n"), "model=\"a\\\"b\\\\\\n\"");
  EXPECT_EQ(server.client().get("/version").json()["version"], LAZY_VERSION);
}

}  // namespace
}  // namespace lazy::serve
