// Load tests with many concurrent clients.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "client.h"

namespace lazy::serve {
namespace {

using testing_support::Client;
using testing_support::FakeEngine;
using testing_support::Reply;
using testing_support::TestServer;

TEST(Load, TwoHundredFiftySixStreams_Complete) {
  testing_support::raise_file_limit();
  FakeEngine::Options options;
  options.step = std::chrono::milliseconds(2);
  TestServer server(options);
  std::vector<Client> clients;
  for (int i = 0; i < 256; ++i) {
    clients.push_back(server.client());
    clients.back().send(Client::post_text(
        "/v1/completions", nlohmann::json{{"prompt", "x"}, {"max_tokens", 60 + i % 7}, {"stream", true}}.dump()));
  }
  for (int i = 0; i < 256; ++i) {
    const Reply reply = clients[static_cast<size_t>(i)].read_reply(30);
    ASSERT_EQ(reply.status, 200);
    const auto events = reply.events();
    std::string text;
    for (size_t at = 0; at + 1 < events.size(); ++at) {
      text += nlohmann::json::parse(events[at])["choices"][0]["text"].get<std::string>();
    }
    ASSERT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(text.size(), static_cast<size_t>(60 + i % 7));
    EXPECT_EQ(text.substr(0, 27), "abcdefghijklmnopqrstuvwxyza");
  }
}

TEST(Load, TwoThousandConnections_AreAnswered) {
  testing_support::raise_file_limit();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 4200) GTEST_SKIP() << "only " << limit.rlim_cur << " open files are allowed";
  TestServer server;
  std::vector<Client> clients;
  for (int i = 0; i < 2000; ++i) {
    clients.push_back(server.client());
    ASSERT_TRUE(clients.back().connected()) << i;
  }
  for (Client& client : clients) {
    client.send(Client::post_text("/v1/completions", R"({"prompt": "x", "max_tokens": 5})"));
  }
  for (Client& client : clients) ASSERT_EQ(client.read_reply(30).status, 200);
  EXPECT_EQ(server.http.counters().open, 2000);
  for (Client& client : clients) ASSERT_EQ(client.get("/health").status, 200);
  clients.clear();
  for (int i = 0; i < 5000 && server.http.counters().open > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(server.http.counters().open, 0);
}

// Some clients disconnect immediately or after the first token. The other clients must receive their complete streams.
TEST(Load, DisconnectingClients_DoNotAffectOthers) {
  FakeEngine::Options options;
  options.step = std::chrono::microseconds(200);
  TestServer server(options);
  std::vector<std::thread> threads;
  std::atomic<int> complete = 0, stayed = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        Client client = server.client();
        client.send(
            Client::post_text("/v1/completions", R"({"prompt": "x", "max_tokens": 40, "stream": true, "n": 2})"));
        if ((i + t) % 3 == 0) continue;                                    // disconnect immediately
        if ((i + t) % 3 == 1 && client.read_until("\"text\":")) continue;  // disconnect after the first token
        ++stayed;
        complete += client.read_reply().events().back() == "[DONE]";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(stayed, 100);
  EXPECT_EQ(complete, stayed);
  EXPECT_TRUE(server.engine->wait_for_running(0));
}

}  // namespace
}  // namespace lazy::serve
