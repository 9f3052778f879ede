// Tests of the HTTP server: invalid requests, and limits of sizes, times and connections.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "client.h"
#include "core/file.h"
#include "core/random.h"
#include "core/text.h"
#include "model/temporary_folder.h"
#include "serve/http/origin.h"
#include "support/error_of.h"

namespace lazy::serve {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using testing_support::Client;
using testing_support::FakeEngine;
using testing_support::Reply;
using testing_support::TestServer;

const char* const kHealth = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";

TEST(Http, Connection_IsReused) {
  TestServer server;
  Client client = server.client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.post("/v1/completions", nlohmann::json{{"prompt", "x"}, {"stream", true}}).events().back(),
            "[DONE]");
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(server.http.counters().accepted, 1);
  const Reply last = client.get("/health", "Connection: close\r\n");
  EXPECT_EQ(last.headers.at("Connection"), "close");
  EXPECT_TRUE(client.ended());
}

// Returns the lines of an access log, each split into its fields.
std::vector<std::vector<std::string>> access_lines(const std::filesystem::path& file) {
  std::vector<std::vector<std::string>> lines;
  for (const std::string& line : split(read_file(file), '\n')) {
    if (!line.empty()) lines.push_back(split(line, ' '));
  }
  return lines;
}

TEST(AccessLog, Requests_HaveOneLineEach) {
  const lazy::testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "access.log";
  {
    TestServer server({}, {}, {}, 2, {}, std::make_shared<AccessLog>(file.string()));
    Client client = server.client();
    const Reply health = client.get("/health?key=secret", "Authorization: Bearer secret\r\nX-Request-Id: my-id.1\r\n");
    EXPECT_EQ(health.headers.at("X-Request-Id"), "my-id.1");
    const Reply completion = client.post("/v1/completions", {{"prompt", "secret"}, {"max_tokens", 3}});
    const Reply stream = client.post("/v1/completions", {{"prompt", "secret"}, {"stream", true}});
    EXPECT_EQ(client.get("/missing").status, 404);
    client.send("nonsense\r\n\r\n");
    EXPECT_EQ(client.read_reply().status, 400);
    EXPECT_TRUE(client.ended());
    server.http.stop();
    const auto lines = access_lines(file);
    ASSERT_EQ(lines.size(), 5u);
    for (const auto& line : lines) {
      ASSERT_EQ(line.size(), 8u);
      EXPECT_THAT(line[0], ContainsRegex("^20[0-9-]{8}T[0-9:]{8}\\.[0-9]{3}Z$"));
      EXPECT_EQ(line[1], "127.0.0.1");
      EXPECT_GE(std::stod(line[6]), 0);
    }
    const auto of = [&](size_t n, size_t from, size_t to) {
      return std::vector<std::string>(lines[n].begin() + static_cast<long>(from),
                                      lines[n].begin() + static_cast<long>(to));
    };
    EXPECT_THAT(of(0, 2, 6), ElementsAre("GET", "/health", "200", std::to_string(health.body.size())));
    EXPECT_EQ(lines[0][7], "my-id.1");
    EXPECT_THAT(of(1, 2, 6), ElementsAre("POST", "/v1/completions", "200", std::to_string(completion.body.size())));
    EXPECT_EQ(lines[1][7], completion.headers.at("X-Request-Id"));
    EXPECT_THAT(of(2, 2, 6), ElementsAre("POST", "/v1/completions", "200", std::to_string(stream.body.size())));
    EXPECT_EQ(lines[2][7], stream.headers.at("X-Request-Id"));
    EXPECT_NE(lines[1][7], lines[2][7]);
    EXPECT_THAT(of(3, 2, 5), ElementsAre("GET", "/missing", "404"));
    EXPECT_THAT(of(4, 2, 5), ElementsAre("-", "-", "400"));
  }
  EXPECT_THAT(read_file(file), Not(HasSubstr("secret")));
}

TEST(AccessLog, ClientDisconnect_IsLoggedAs499) {
  const lazy::testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "access.log";
  FakeEngine::Options options;
  options.step = std::chrono::seconds(1);  // a token takes 1 s, so the default of 16 tokens takes longer than the test
  TestServer server(options, {}, {}, 2, {}, std::make_shared<AccessLog>(file.string()));
  {
    Client client = server.client();
    client.send(Client::post_text("/v1/completions", R"({"prompt": "x"})"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // by now the request has usually been submitted
  }
  for (int i = 0; i < 5000 && access_lines(file).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(access_lines(file).size(), 1u);
  EXPECT_EQ(access_lines(file).front()[4], "499");
}

TEST(AccessLog, FailedStreamsAndRefusedHeads_HaveTheirStatusAndPath) {
  const lazy::testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "access.log";
  FakeEngine::Options options;
  // set when the client has received the first event; the fake engine waits for it before it fails
  std::promise<void> begun;
  options.next = [&](const GenerationRequest&, int64_t n) -> int64_t {
    if (n < 3) return 'a';
    begun.get_future().wait_for(std::chrono::seconds(10));
    return -1;
  };
  HttpLimits limits;
  limits.max_body_bytes = 100;
  limits.max_header_bytes = 1000;
  TestServer server(options, limits, {}, 2, {}, std::make_shared<AccessLog>(file.string()));
  Client client = server.client();
  client.send(Client::post_text("/v1/completions", R"({"prompt": "x", "stream": true})"));
  ASSERT_TRUE(client.read_until("data: "));
  begun.set_value();
  // the status is 200 because the failure occurs after the headers were sent; it is reported as an event
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(server.client().post("/v1/completions?key=secret", std::string(200, 'x'), "X-Request-Id: mine\r\n").status,
            413);
  EXPECT_EQ(server.client().get("/health", "A: " + std::string(2000, 'x') + "\r\n").status, 431);
  server.http.stop();
  const auto lines = access_lines(file);
  ASSERT_EQ(lines.size(), 3u);
  std::vector<std::string> requests;  // different connections may write their lines in any order
  for (const auto& line : lines) {
    ASSERT_EQ(line.size(), 8u);
    requests.push_back(fmt::format("{} {} {} {}", line[2], line[3], line[4], line[7] == "mine" ? "mine" : ""));
  }
  EXPECT_THAT(requests,
              UnorderedElementsAre("POST /v1/completions 500 ", "POST /v1/completions 413 mine", "GET /health 431 "));
}

TEST(AccessLog, ResponseSentBeforeAStop_KeepsItsStatus) {
  const lazy::testing::TemporaryFolder folder;
  for (int i = 0; i < 50; ++i) {
    const std::filesystem::path file = folder / fmt::format("access{}.log", i);
    TestServer server({}, {}, {}, 2, {}, std::make_shared<AccessLog>(file.string()));
    ASSERT_EQ(server.client().get("/missing").status, 404);
    server.http.stop();  // stop() often runs before the server has noticed that the response is completely written
    const auto lines = access_lines(file);
    ASSERT_EQ(lines.size(), 1u);
    ASSERT_EQ(lines[0][4], "404") << "server " << i;
  }
}

TEST(AccessLog, Fields_AreEscaped) {
  AccessRecord record{.client = "::1", .method = "GET", .path = "/a b\n\"\xff", .status = 404};
  EXPECT_THAT(access_line(record), EndsWith(" ::1 GET /a%20b%0A%22%FF 404 0 0.000 -\n"));
}

TEST(AccessLog, Reopen_SupportsRotation) {
  const lazy::testing::TemporaryFolder folder;
  const std::filesystem::path file = folder / "access.log", rotated = folder / "access.log.1";
  AccessLog log(file.string());
  log.write({.path = "/1"});
  std::filesystem::rename(file, rotated);
  log.write({.path = "/2"});  // until the log is reopened, lines go to the renamed file
  log.reopen();
  log.write({.path = "/3"});
  EXPECT_EQ(access_lines(rotated).size(), 2u);
  ASSERT_EQ(access_lines(file).size(), 1u);
  EXPECT_EQ(access_lines(file).front()[3], "/3");
  // The path of the log is now a directory, so it cannot be opened. The log must continue with the old file.
  std::filesystem::rename(file, rotated);
  std::filesystem::create_directory(file);
  log.reopen();
  log.write({.path = "/4"});
  EXPECT_EQ(access_lines(rotated).back()[3], "/4");
}

TEST(AccessLog, UnwritableFile_IsAnError) {
  EXPECT_THAT(error_of([] { AccessLog log("/missing/access.log"); }),
              Names({"serve", "--access-log", "/missing/access.log"}));
}

TEST(Http, InvalidRequestId_IsReplaced) {
  TestServer server;
  const Reply reply = server.client().get("/health", "X-Request-Id: a b\r\n");
  EXPECT_THAT(reply.headers.at("X-Request-Id"), StartsWith("req-"));
}

TEST(Http, PipelinedRequests_AreAnsweredInOrder) {
  TestServer server;
  Client client = server.client();
  std::string all;
  for (int i = 0; i < 200; ++i) all += kHealth;
  client.send(all + Client::post_text("/v1/completions", R"({"prompt": "x", "max_tokens": 3})") + kHealth);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_reply().json()["choices"][0]["text"], "abc");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Http, RequestSentByteByByte_IsAnswered) {
  TestServer server;
  Client client = server.client();
  for (const char byte : Client::post_text("/v1/completions", R"({"prompt": "x", "max_tokens": 3})")) {
    client.send({&byte, 1});
  }
  EXPECT_EQ(client.read_reply().json()["choices"][0]["text"], "abc");
}

TEST(Http, HeadChunkedBodiesAndHttp10_AreSupported) {
  TestServer server;
  Client client = server.client();
  client.send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_reply(10, true).status, 200);
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "9\r\n{\"prompt\"\r\n6\r\n: \"x\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  Client old = server.client();
  const std::string body = R"({"prompt": "x", "max_tokens": 3, "stream": true})";
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const Reply reply = old.read_reply();  // HTTP/1.0 has no chunked encoding, so the stream ends with the connection
  EXPECT_FALSE(reply.headers.contains("Transfer-Encoding"));
  EXPECT_EQ(reply.events().back(), "[DONE]");
}

TEST(Http, ExpectContinue_IsAnswered) {
  TestServer server;
  Client client = server.client();
  const std::string body = R"({"prompt": "x", "max_tokens": 3})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.read_reply(10, true).status, 100);
  client.send(body);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Cors, Origins_MustHaveTheFormatOfBrowsers) {
  for (const char* origin : {"https://example.org", "http://localhost:3000", "https://example.org:8443", "null",
                             "http://127.0.0.1:65535", "http://[::1]:8080", "chrome-extension://abcdefgh",
                             "https://xn--bcher-kva.example", "http://example.org:443", "tauri://localhost"}) {
    EXPECT_TRUE(is_origin(origin)) << origin;
  }
  for (const char* other : {"",
                            "example.org",
                            "localhost:3000",
                            "https://example.org/",
                            "https://example.org/page",
                            "https://example.org?a",
                            "https://Example.org",
                            "HTTPS://example.org",
                            "https://example.org:443",
                            "http://example.org:80",
                            "https://example.org:",
                            "https://example.org:0",
                            "https://example.org:070",
                            "https://example.org:65536",
                            "https://user@example.org",
                            "https://",
                            "://example.org",
                            "https://b\u00fccher.example",
                            "https://a b",
                            "https://*.example.org",
                            "http://::1",
                            "http://[::1",
                            "https://a,https://b"}) {
    EXPECT_FALSE(is_origin(other)) << other;
  }
}

TEST(Cors, WithoutAllowedOrigins_IsDisabled) {
  const std::string preflight =
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n\r\n";
  const std::string allow = "Access-Control-Allow-Origin";
  const auto ask = [&](TestServer& server, const std::string& request) {
    Client client = server.client();
    client.send(request);
    return client.read_reply(10, true);
  };
  TestServer closed({}, {}, ApiKeys({"key"}));
  const Reply refused = ask(closed, preflight);
  EXPECT_EQ(refused.status, 204);
  EXPECT_EQ(refused.headers.at("Allow"), "POST, OPTIONS");
  EXPECT_FALSE(refused.headers.contains(allow));
  EXPECT_FALSE(refused.headers.contains("Content-Length"));

  TestServer open({}, {}, ApiKeys({"key"}), 2, {"https://a.example", "http://b"});
  const Reply allowed = ask(open, preflight);
  EXPECT_EQ(allowed.status, 204) << "browsers send preflight requests without a key";
  EXPECT_EQ(allowed.headers.at(allow), "https://a.example");
  EXPECT_EQ(allowed.headers.at("Access-Control-Allow-Headers"), "authorization,content-type");
  EXPECT_EQ(allowed.headers.at("Vary"), "Origin");
  EXPECT_THAT(allowed.headers.at("Access-Control-Allow-Methods"), HasSubstr("POST"));
  const std::string origin = "Origin: http://b\r\n";
  EXPECT_EQ(open.client().get("/health", origin).headers.at(allow), "http://b");
  EXPECT_EQ(open.client().get("/v1/models", origin).headers.at(allow), "http://b") << "pages may read 401 responses";
  EXPECT_FALSE(open.client().get("/health", "Origin: http://b.evil\r\n").headers.contains(allow));
  EXPECT_FALSE(open.client().get("/health").headers.contains(allow));
  const Reply stream = open.client().post("/v1/completions", nlohmann::json{{"prompt", "x"}, {"stream", true}},
                                          origin + "Authorization: Bearer key\r\n");
  EXPECT_EQ(stream.headers.at(allow), "http://b");
  EXPECT_EQ(stream.events().back(), "[DONE]");

  TestServer any({}, {}, {}, 2, {"*"});
  EXPECT_EQ(any.client().get("/health", origin).headers.at(allow), "*");
}

TEST(Limits, BodyAndHeaderSize_AreLimited) {
  HttpLimits limits;
  limits.max_body_bytes = 1000;
  limits.max_header_bytes = 1000;
  TestServer server({}, limits);
  const auto expect = [](const Reply& reply, int status, const char* code) {
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(reply.json()["error"]["code"], code) << reply.body;
    EXPECT_EQ(reply.headers.at("Connection"), "close");
  };
  expect(server.client().post("/v1/completions", std::string(5000, ' ')), 413, "body_too_large");
  expect(server.client().post("/v1/completions", std::string(3000000, ' ')), 413, "body_too_large");
  Client chunked = server.client();
  chunked.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
               std::string(2000, ' ') + "\r\n0\r\n\r\n");
  expect(chunked.read_reply(), 413, "body_too_large");
  expect(server.client().get("/health", "X-Long: " + std::string(2000, 'x') + "\r\n"), 431, "headers_too_large");
  expect(server.client().get("/" + std::string(20000, 'x')), 414, "uri_too_long");
}

TEST(Limits, Connections_AreLimited) {
  HttpLimits limits;
  limits.max_connections = 3;
  TestServer server({}, limits);
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(server.client());
    EXPECT_EQ(clients.back().get("/health").status, 200);
  }
  const Reply reply = server.client().get("/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["error"]["code"], "too_many_connections");
  clients.pop_back();
  int status = 0;  // remains 0 until the server has noticed that one connection was closed
  for (int i = 0; i < 100 && status != 200; ++i) status = server.client().get("/health").status;
  EXPECT_EQ(status, 200);
}

TEST(Limits, RequestTime_IsLimited) {
  HttpLimits limits;
  limits.idle = 0.2;
  limits.read = 0.3;
  TestServer server({}, limits);
  Client idle = server.client();
  EXPECT_TRUE(idle.ended(5));
  EXPECT_EQ(idle.received(), "");
  Client slow = server.client();  // this client sends single bytes; they must not extend the deadline of its request
  std::thread feeder([&] {
    for (int i = 0; i < 12; ++i) {
      slow.send(i == 0 ? "GET /health HTTP/1.1\r\n" : "A");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const Reply reply = slow.read_reply();
  feeder.join();
  EXPECT_EQ(reply.status, 408);
  EXPECT_EQ(reply.json()["error"]["code"], "request_timeout");
}

// Half-open connections and slow clients must not block a thread. The server has one thread. It must answer another
// client within that client's timeout (10 s), long before the slow clients time out (60 s).
TEST(Limits, SlowClients_DoNotBlockThreads) {
  TestServer server({}, {}, {}, 1);
  std::vector<Client> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(server.client());
    if (i % 3 == 1) slow.back().send("POST /v1/completions HTTP/1.1\r\nContent-Le");
    if (i % 3 == 2) slow.back().send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  }
  EXPECT_EQ(server.complete({{"prompt", "x"}, {"max_tokens", 3}}).status, 200);
}

TEST(Keys, AreRequiredExceptForHealth) {
  TestServer server({}, {}, ApiKeys({"first-key", "second"}));
  const auto status = [&](const char* header) {
    return server.client().post("/v1/completions", std::string(R"({"prompt": "x"})"), header).status;
  };
  EXPECT_EQ(status("Authorization: Bearer first-key\r\n"), 200);
  EXPECT_EQ(status("Authorization: bearer second\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer second-key\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer \r\n"), 401);
  EXPECT_EQ(status("Authorization: first-key\r\n"), 401);
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(server.client().get("/health").status, 200);
  for (const char* path : {"/metrics", "/v1/models", "/nothing"}) EXPECT_EQ(server.client().get(path).status, 401);
  const Reply reply = server.client().get("/v1/models");
  EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(reply.headers.at("WWW-Authenticate"), "Bearer");
}

TEST(Drain, RunningRequestsFinish_NewOnesAreRefused) {
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(1);
  TestServer server(options);
  Client idle = server.client();
  EXPECT_EQ(idle.get("/health").status, 200);
  Client runs = server.client();
  runs.send(Client::post_text("/v1/completions", R"({"prompt": "x", "max_tokens": 200, "stream": true})"));
  ASSERT_TRUE(server.engine->wait_for_running(1));
  server.api.drain();
  server.http.drain();
  EXPECT_TRUE(idle.ended());
  const Reply refused = server.complete({{"prompt", "x"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "shutting_down");
  EXPECT_EQ(server.client().get("/health").status, 503);
  server.engine->drain();
  EXPECT_TRUE(server.http.wait_for_answers(5));
  EXPECT_EQ(runs.read_reply().events().back(), "[DONE]");
  server.http.stop();
  EXPECT_FALSE(server.client().connected());
}

TEST(Http, AddressInUse_IsAOneLineError) {
  TestServer server;
  const int port = server.http.port();
  EXPECT_THAT(error_of([&] { HttpServer("127.0.0.1", port, 1, {}, nullptr); }),
              IsMessage(fmt::format("serve: cannot listen at 127.0.0.1 port {}: Address already in use", port)));
  EXPECT_THROW(HttpServer("no such host.", 0, 1, {}, nullptr), Error);
}

// For any bytes, the server must either answer or close the connection, and must then accept new connections.
TEST(Http, MalformedBytes_DoNotStopTheServer) {
  HttpLimits limits;
  limits.max_header_bytes = 2000;
  limits.max_body_bytes = 4000;
  TestServer server({}, limits);
  Random random(11);
  const std::vector<std::string> seeds = {
      kHealth,
      Client::post_text("/v1/completions", R"({"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "echo": true})"),
      Client::post_text("/v1/completions", R"({"prompt": [[1, 2], [3]], "stream": true, "stop": ["x"]})"),
      Client::post_text("/tokenize", R"({"prompt": "some text"})"),
      "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n"};
  int answered = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string input = seeds[random.below(seeds.size())];
    for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
      const size_t at = random.below(input.size() + 1), size = std::min<size_t>(1 + random.below(8), input.size() - at);
      switch (random.below(5)) {
        case 0:
          input.erase(at, size);
          break;
        case 1:
          input.insert(at, input.substr(random.below(input.size() + 1), size));
          break;
        case 2:
          input.insert(at, 1, static_cast<char>(random.below(256)));
          break;
        case 3:
          input.insert(at, "\r\n");
          break;
        default:
          if (size > 0) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
      }
    }
    Client client = server.client();
    ASSERT_TRUE(client.connected());
    client.send(input);
    client.end_of_input();
    if (round % 4 == 0) {
      ASSERT_TRUE(client.ended()) << "the connection did not end after: " << input;
      answered += client.received().starts_with("HTTP/1.1 ");
    }
  }
  EXPECT_GT(answered, 100);
  EXPECT_EQ(server.client().get("/health").status, 200);
  EXPECT_TRUE(server.engine->wait_for_running(0));
}

}  // namespace
}  // namespace lazy::serve
