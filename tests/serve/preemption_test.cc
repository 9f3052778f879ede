// Tests of the engine with less memory than its requests need. Pages are allocated as texts grow. If no page is free,
// running requests are preempted and later recomputed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "model/context_length.h"
#include "ops/device.h"
#include "serve/engine_texts.h"
#include "support/error_of.h"

namespace lazy {
namespace preemption {
namespace {

using namespace engine_texts;

constexpr int64_t kPageBytes = 3 * 2 * 8 * 2 * 8 * 4;  // 3 layers, K and V, 8 tokens, 2 heads of size 8, fp32

// The test parameter selects where tokens are sampled: if true, on the device, where decode steps are queued ahead;
// otherwise on the host.
class Preemption : public ::testing::TestWithParam<bool> {
 protected:
  EngineOptions options(int64_t pages) const {
    EngineOptions out = kSmall;
    out.cache_bytes = pages * kPageBytes;
    out.decode_runner = GetParam();
    return out;
  }
};

GenerationRequest chat(uint64_t seed, int64_t max_tokens) {
  // The largest two logits of this model are far apart at each position. If recomputation adds numbers in a different
  // order, greedy decoding therefore still selects the same token.
  return request(prompt(10 + seed % 5, seed), max_tokens, {.temperature = 0});
}

TEST_P(Preemption, Texts_MatchAnUnlimitedPool) {
  LanguageModel model(small(), 3);
  model.to(ops::test::test_device());
  std::vector<GenerationRequest> requests;
  for (uint64_t n = 0; n < 9; ++n) {
    requests.push_back(chat(n, 60));
    if (n % 3 == 1) requests.back().sampling = {.temperature = 0.9, .seed = n};
    if (n % 3 == 2) requests.back().sampling = {.temperature = 0, .repetition_penalty = 1.4, .presence_penalty = 0.5};
    if (n % 4 == 0) requests.back().prompt_logprobs = true;
  }
  std::vector<std::vector<int64_t>> expected;
  {
    Engine engine(model, options(1000));
    for (const GenerationRequest& one : requests) expected.push_back(submit(engine, one)->wait().ids());
    EXPECT_EQ(engine.metrics().preemptions, 0);
  }
  Engine engine(model, options(24));  // all requests together need 9 x 9 pages
  std::vector<std::shared_ptr<Collector>> texts;
  for (const GenerationRequest& one : requests) texts.push_back(submit(engine, one));
  int64_t prompts = 0;
  for (size_t n = 0; n < texts.size(); ++n) {
    EXPECT_EQ(texts[n]->wait().ids(), expected[n]) << n;
    EXPECT_EQ(texts[n]->reason, FinishReason::length) << texts[n]->message;
    EXPECT_EQ(texts[n]->ends, 1);
    EXPECT_EQ(texts[n]->prompt.size(), requests[n].prompt_logprobs ? requests[n].prompt.size() : 0);
    prompts += static_cast<int64_t>(requests[n].prompt.size());
  }
  engine.drain();
  const EngineMetrics metrics = engine.metrics();
  EXPECT_GT(metrics.preemptions, 0);
  EXPECT_EQ(metrics.free_pages + metrics.shared_pages, 24);
  EXPECT_EQ(metrics.generated_tokens, 9 * 60);
  EXPECT_LE(metrics.prompt_tokens, prompts) << "recomputed tokens must not be counted again";
}

// Counts how many tokens each of the other requests generates between the submission of this request and its first
// token.
class FirstToken : public Receiver {
 public:
  explicit FirstToken(std::vector<std::shared_ptr<Collector>> others) : others_(std::move(others)) {
    for (const auto& other : others_) before_.push_back(other->tokens.size());
  }
  void on_prompt(std::span<const ScoredToken>) override {}
  bool on_token(const ScoredToken&, bool) override {
    for (size_t n = 0; n < others_.size(); ++n) steps = std::max(steps, others_[n]->tokens.size() - before_[n]);
    return true;
  }
  void on_end(FinishReason why, const std::string&) override {
    reason = why;
    done.set_value();
  }
  size_t steps = 0;  // largest number of tokens that one of the other texts received in this time
  FinishReason reason = FinishReason::failed;
  std::promise<void> done;

 private:
  std::vector<std::shared_ptr<Collector>> others_;
  std::vector<size_t> before_;
};

TEST_P(Preemption, ShortRequest_DoesNotWaitForOpenEndedRequests) {
  LanguageModel model(small(), 3);
  model.to(ops::test::test_device());
  EngineOptions few = options(40);
  few.max_model_len = 4096;
  {
    Engine engine(model, few);
    const int64_t most = engine.max_request_tokens();
    EXPECT_EQ(most, 40 * 8);
    std::vector<std::shared_ptr<Collector>> chats;
    std::vector<Engine::Id> ids;
    for (uint64_t n = 0; n < 64; ++n) {
      GenerationRequest open = chat(n, 0);
      open.max_tokens = most - static_cast<int64_t>(open.prompt.size());
      chats.push_back(std::make_shared<Collector>());
      ids.push_back(engine.submit(open, chats.back()).id);
    }
    EXPECT_TRUE(chats.front()->wait_for_tokens(30));
    for (int round = 0; round < 5; ++round) {
      std::promise<void> between;
      auto first = std::shared_ptr<FirstToken>();
      engine.run_between_steps([&](bool) {  // while this function runs, no text gets a token
        first = std::make_shared<FirstToken>(chats);
        engine.submit(chat(1000 + static_cast<uint64_t>(round), 1), first);
        between.set_value();
      });
      between.get_future().wait();
      auto future = first->done.get_future();
      ASSERT_EQ(future.wait_for(std::chrono::seconds(60)), std::future_status::ready);
      EXPECT_EQ(first->reason, FinishReason::length);
      // The request may take two decode steps of the other texts. A third token is possible for a text that was
      // preempted and restarts in this time, because its prefill also generates one.
      EXPECT_LE(first->steps, 3u);
    }
    for (const Engine::Id id : ids) engine.cancel(id);
    engine.drain();
    const EngineMetrics metrics = engine.metrics();
    EXPECT_EQ(metrics.free_pages + metrics.shared_pages, metrics.pages);
  }
}

// Short requests keep arriving. Requests without a length limit must finish nevertheless.
TEST_P(Preemption, OpenEndedRequests_AreNotStarved) {
  LanguageModel model(small(), 3);
  model.to(ops::test::test_device());
  Engine engine(model, options(8));
  const auto open = submit(engine, chat(1, 40));
  for (uint64_t n = 0; n < 300; ++n) submit(engine, request(prompt(9 + n % 9, n), 3, {.seed = n}));
  EXPECT_EQ(open->wait().tokens.size(), 40u);
  engine.drain();
}

INSTANTIATE_TEST_SUITE_P(All, Preemption, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "DecodeRunner" : "HostSteps"; });

// Models that do not support paged keys use a separate cache per sequence.
TEST(PreemptionOfSeparateCaches, Texts_MatchALargeCache) {
  ModelConfig config = small("none");
  config.positions = {};
  config.positions.rope_scaling = {.type = "dynamic", .factor = 2, .original_length = 4096};
  LanguageModel model(config, 3);
  EngineOptions options = kSmall;
  options.cache_bytes = int64_t{3} * 3 * 256 * (3 * 2 * 2 * 8 * 4);  // memory for three sequences of 256 tokens
  std::vector<std::shared_ptr<Collector>> texts;
  Engine engine(model, options), large(model, kSmall);
  EXPECT_EQ(engine.max_request_tokens(), 3 * 256);
  for (uint64_t n = 0; n < 4; ++n) texts.push_back(submit(engine, chat(n, 300)));
  for (uint64_t n = 0; n < 4; ++n) EXPECT_EQ(texts[n]->wait().ids(), submit(large, chat(n, 300))->wait().ids());
  EXPECT_GT(engine.metrics().preemptions, 0);
}

TEST(RequestLength, Limit_IsTheSmallerOfModelAndPool) {
  const auto limit = [](const ModelConfig& config, int64_t max_model_len = 0) {
    LanguageModel model(config, 3);
    EngineOptions options = kSmall;
    options.max_model_len = max_model_len;
    return Engine(model, options).max_request_tokens();
  };
  ModelConfig config = small();
  config.max_length = 64;
  EXPECT_EQ(limit(config), 64);
  EXPECT_EQ(limit(config, 100), 100);
  config.positions.rope_scaling = {.type = "linear", .factor = 4};
  EXPECT_EQ(limit(config), 256);
  config.positions.rope_scaling = {.type = "yarn", .factor = 2, .original_length = 32};
  EXPECT_EQ(limit(config), 64) << "max_position_embeddings is the extended length";
  ModelConfig learned = small("learned");
  learned.max_length = 64;
  EXPECT_EQ(limit(learned, 100), 64) << "the position table has only 64 rows";
}

}  // namespace
}  // namespace preemption
}  // namespace lazy
