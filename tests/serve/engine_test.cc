// Tests of the engine. Its texts are compared with full forward passes that compute one text at a time.
#include "serve/engine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <thread>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"
#include "serve/engine_texts.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using namespace engine_texts;

class EngineModels : public ::testing::TestWithParam<std::string> {};

// Prompts of many lengths run at the same time. They are shorter than a page, consist of whole chunks, or consist of
// chunks and a remainder.
TEST_P(EngineModels, GreedyDecode_MatchesFullForward) {
  LanguageModel model(small(GetParam()), 3);
  const std::vector<size_t> lengths{1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100};
  std::vector<std::vector<int64_t>> expected;
  for (const size_t length : lengths) {
    expected.push_back(greedy_by_full_forwards(model, prompt(length, length), 30));
  }
  Engine engine(model, kSmall);
  std::vector<std::shared_ptr<Collector>> texts;
  for (const size_t length : lengths) {
    texts.push_back(submit(engine, request(prompt(length, length), 30, {.temperature = 0})));
  }
  for (size_t n = 0; n < texts.size(); ++n) {
    EXPECT_EQ(texts[n]->wait().ids(), expected[n]) << "prompt length " << lengths[n];
    EXPECT_EQ(texts[n]->reason, FinishReason::length);
    EXPECT_EQ(texts[n]->ends, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineModels,
                         ::testing::Values("lazy", "softmax", "window", "sink", "learned", "sinusoidal", "alibi",
                                           "none", "longrope"),
                         [](const auto& info) { return info.param; });

TEST(Engine, Longrope_UsesPagesUpToItsOriginalLength) {
  LanguageModel model(small("longrope"), 3);
  const auto expected = greedy_by_full_forwards(model, prompt(10, 1), 30);
  for (const int64_t limit : {40, 41}) {
    EngineOptions options = kSmall;
    options.max_model_len = limit;
    Engine engine(model, options);
    EXPECT_EQ(submit(engine, request(prompt(10, 1), 30, {.temperature = 0}))->wait().ids(), expected);
    EXPECT_EQ(engine.metrics().pages > 0, limit == 40) << limit;
  }
}

ModelConfig recurrent(MixerType mixer) {
  ModelConfig c = small("softmax");
  c.mixer = find_mixer(name(mixer))->defaults;
  c.mixer.type = mixer;
  c.mixer.heads = 2;
  c.mixer.segment = 8;
  c.attention.num_kv_heads = c.attention.num_heads;
  c.init_std = 0.15;
  mixer_kind(c).infer_sizes(c);
  // attention in layer 1 and a recurrence in the other layers
  if (mixer != MixerType::titans_mac) c.mixer.attention_layers = {1};
  return c;
}

// The mixers of these models have a recurrent state. The engine computes a separate pass for each of their sequences.
TEST(Engine, RecurrentModels_MatchFullForward) {
  for (const MixerType mixer : {MixerType::retnet, MixerType::mamba2, MixerType::gated_delta_net, MixerType::ttt_linear,
                                MixerType::titans_mac}) {
    SCOPED_TRACE(name(mixer));
    LanguageModel model(recurrent(mixer), 5);
    std::vector<std::vector<int64_t>> expected;
    for (const size_t length : {3, 16, 40}) {
      expected.push_back(greedy_by_full_forwards(model, prompt(length, length), 12));
    }
    Engine engine(model, kSmall);
    std::vector<std::shared_ptr<Collector>> texts;
    for (const size_t length : {3, 16, 40}) {
      texts.push_back(submit(engine, request(prompt(length, length), 12, {.temperature = 0})));
    }
    for (size_t n = 0; n < texts.size(); ++n) EXPECT_EQ(texts[n]->wait().ids(), expected[n]);
  }
}

// With a streaming cache, the text may become much longer than the cache.
TEST(Engine, StreamingCache_ContinuesBeyondItsSize) {
  const StreamingCache keep{2, 14};
  LanguageModel model(small(), 11);
  EngineOptions options = kSmall;
  options.streaming = keep;
  options.cache_bytes = 1 << 20;
  std::vector<int64_t> ids = prompt(30, 1);
  std::vector<int64_t> text;
  {
    Engine engine(model, options);
    text = submit(engine, request(ids, 40, {.temperature = 0}))->wait().ids();
    EXPECT_EQ(submit(engine, request(ids, 40, {.temperature = 0}))->wait().ids(), text);
    EXPECT_EQ(submit(engine, request(prompt(3, 1), 50'000'000, {.temperature = 0}))->wait_for_tokens(3), true);
  }
  const at::NoGradGuard guard;
  for (const int64_t token : text) {
    KVCache cache{.streaming = keep};
    const at::Tensor hidden = model.forward(at::tensor(ids, at::kLong).unsqueeze(0), {.cache = &cache}).hidden;
    ASSERT_EQ(model.logits(hidden.select(1, hidden.size(1) - 1)).argmax().item<int64_t>(), token);
    ids.push_back(token);
  }
}

// A request must have bitwise equal texts and log-probabilities when it runs alone and when it runs together with other
// requests that join and leave.
TEST(Engine, Text_IsIndependentOfTheBatch) {
  ModelConfig c = small();
  c.hidden_size = 96;
  c.mlp.intermediate_size = 256;
  LanguageModel model(c, 3);
  GenerationRequest one = request(prompt(37, 1), 40, {.temperature = 0.9, .top_p = 0.95, .seed = 5});
  one.logprobs = 3;
  one.prompt_logprobs = true;
  Engine alone(model, kSmall);
  const auto expected = submit(alone, one);
  expected->wait();
  alone.drain();
  Engine engine(model, kSmall);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::shared_ptr<Collector>> others;
    for (uint64_t n = 0; n < 5; ++n) {
      others.push_back(submit(engine, request(prompt(5 + 11 * n, n), static_cast<int64_t>(3 + 7 * n), {.seed = n})));
    }
    const auto text = submit(engine, one);
    for (uint64_t n = 0; n < 9; ++n) {
      others.push_back(submit(engine, request(prompt(3 + n, n), static_cast<int64_t>(1 + 9 * n), {.seed = n})));
    }
    text->wait();
    EXPECT_TRUE(same(text->tokens, expected->tokens)) << "round " << round;
    EXPECT_TRUE(same(text->prompt, expected->prompt)) << "round " << round;
    for (const auto& other : others) other->wait();
  }
}

TEST(Engine, SharedChunks_DoNotChangeTheText) {
  LanguageModel model(small(), 3);
  const GenerationRequest one = request(prompt(70, 9), 20, {.temperature = 0});
  Engine engine(model, kSmall);
  const std::vector<int64_t> first = submit(engine, one)->wait().ids();
  EXPECT_EQ(engine.metrics().reused_tokens, 0);
  EXPECT_EQ(submit(engine, one)->wait().ids(), first);
  EXPECT_EQ(engine.metrics().reused_tokens, 64);
  // The second prompt begins with the tokens of the first one and then differs from it.
  GenerationRequest other = one;
  other.prompt[40] = (other.prompt[40] + 1) % 211;
  Engine fresh(model, kSmall);
  const std::vector<int64_t> expected = submit(fresh, other)->wait().ids();
  EXPECT_EQ(submit(engine, other)->wait().ids(), expected);
  EXPECT_EQ(engine.metrics().reused_tokens, 64 + 32);
  // If a prompt consists of whole chunks that are all in the cache, its last chunk is computed again, because the
  // engine needs its logits.
  other.prompt.resize(32);
  submit(engine, other)->wait();
  EXPECT_EQ(engine.metrics().reused_tokens, 64 + 32 + 16);
}

TEST(Engine, LogProbabilities_CoverPromptAndText) {
  LanguageModel model(small(), 3);
  const std::vector<int64_t> ids = prompt(50, 2);
  GenerationRequest one = request(ids, 8, {.temperature = 0});
  one.logprobs = 5;
  one.prompt_logprobs = true;
  std::vector<int64_t> all = ids;
  std::shared_ptr<Collector> text;
  {
    Engine engine(model, kSmall);
    text = submit(engine, one);
    text->wait();
  }
  for (const ScoredToken& token : text->tokens) all.push_back(token.id);
  const at::NoGradGuard guard;
  const at::Tensor logits = model.logits(model.forward(at::tensor(all, at::kLong).unsqueeze(0)).hidden);
  const at::Tensor expected = at::log_softmax(logits[0].to(at::kDouble), -1);
  ASSERT_EQ(text->prompt.size(), ids.size());
  EXPECT_TRUE(std::isnan(text->prompt[0].logprob));
  EXPECT_TRUE(text->prompt[0].likely.empty());
  std::vector<ScoredToken> scored = text->prompt;
  scored.insert(scored.end(), text->tokens.begin(), text->tokens.end());
  for (size_t n = 1; n < scored.size(); ++n) {
    EXPECT_EQ(scored[n].id, all[n]);
    const at::Tensor row = expected[static_cast<int64_t>(n) - 1];
    EXPECT_NEAR(scored[n].logprob, row[all[n]].item<double>(), 2e-5);
    ASSERT_EQ(scored[n].likely.size(), 5U);
    const auto [values, indices] = row.topk(5);
    for (int64_t k = 0; k < 5; ++k) {
      EXPECT_EQ(scored[n].likely[static_cast<size_t>(k)].first, indices[k].item<int64_t>());
      EXPECT_NEAR(scored[n].likely[static_cast<size_t>(k)].second, values[k].item<double>(), 2e-5);
    }
  }
}

TEST(Engine, MaxTokensZero_ScoresOnlyThePrompt) {
  LanguageModel model(small(), 3);
  Engine engine(model, kSmall);
  GenerationRequest one = request(prompt(20, 2), 0, {});
  auto text = submit(engine, one);
  EXPECT_TRUE(text->wait().tokens.empty());
  EXPECT_EQ(text->reason, FinishReason::length);
  one.prompt_logprobs = true;
  text = submit(engine, one);
  EXPECT_EQ(text->wait().prompt.size(), 20U);
  EXPECT_TRUE(text->tokens.empty());
}

TEST(Engine, StopTokenOrReceiver_EndsTheText) {
  LanguageModel model(small(), 3);
  Engine engine(model, kSmall);
  GenerationRequest one = request(prompt(20, 2), 30, {.temperature = 0});
  const std::vector<int64_t> whole = submit(engine, one)->wait().ids();
  one.stop_tokens = {whole[4]};
  const auto stopped = submit(engine, one);
  EXPECT_EQ(stopped->wait().reason, FinishReason::stop);
  EXPECT_TRUE(stopped->stopped);
  const auto place = std::find(whole.begin(), whole.end(), whole[4]);
  EXPECT_EQ(stopped->ids(), std::vector<int64_t>(whole.begin(), place + 1));
  one.stop_tokens = {};
  auto wants = std::make_shared<Collector>();
  wants->most = 3;
  engine.submit(one, wants);
  EXPECT_EQ(wants->wait().reason, FinishReason::stop);
  EXPECT_EQ(wants->tokens.size(), 3U);
}

// The requests together need more pages than the pool has.
TEST(Engine, ExhaustedPool_RequestsWaitAndNoPageIsLost) {
  LanguageModel model(small(), 3);
  EngineOptions options = kSmall;
  options.cache_bytes = 12 * 3 * 2 * 8 * 2 * 8 * 4;  // 12 pages: 3 layers, K and V, 8 tokens, 2 heads of size 8, fp32
  Engine engine(model, options);
  EXPECT_EQ(engine.max_request_tokens(), 12 * 8);
  std::vector<std::shared_ptr<Collector>> texts;
  for (uint64_t n = 0; n < 40; ++n)
    texts.push_back(submit(engine, request(prompt(20 + n % 9, n % 5), 12, {.seed = n})));
  for (const auto& text : texts) {
    EXPECT_EQ(text->wait().reason, FinishReason::length);
    EXPECT_EQ(text->tokens.size(), 12U);
  }
  engine.drain();
  const EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.pages, 12);
  EXPECT_EQ(metrics.free_pages + metrics.shared_pages, 12);
  EXPECT_EQ(metrics.requests, 40);
  EXPECT_EQ(metrics.generated_tokens, 40 * 12);
}

// Models without paged keys use a separate cache per sequence. If the memory does not suffice for another cache, a
// request waits, as it does for pages, and is not refused.
TEST(Engine, ExhaustedSeparateCaches_RequestsWait) {
  ModelConfig config = small("none");
  config.positions = {};
  config.positions.rope_scaling = {.type = "dynamic", .factor = 2, .original_length = 4096};
  LanguageModel model(config, 3);
  Engine engine(model, kSmall);
  const int64_t most = engine.max_request_tokens();
  auto first = std::make_shared<Collector>();
  const auto submission = engine.submit(request(prompt(10, 2), most - 10, {}), first);
  EXPECT_TRUE(first->wait_for_tokens(3));
  EXPECT_EQ(engine.max_request_tokens(), most);
  const auto second = submit(engine, request(prompt(10, 3), most - 10, {}));
  engine.cancel(submission.id);
  EXPECT_TRUE(second->wait_for_tokens(3));
}

TEST(Engine, CancelledRequest_FreesItsPages) {
  LanguageModel model(small(), 3);
  Engine engine(model, kSmall);
  auto text = std::make_shared<Collector>();
  const auto submission = engine.submit(request(prompt(10, 2), 4000, {}), text);
  auto waits = std::make_shared<Collector>();
  EXPECT_TRUE(text->wait_for_tokens(3));
  engine.cancel(submission.id);
  engine.cancel(987654);  // canceling an unknown id has no effect
  EXPECT_EQ(text->wait().reason, FinishReason::cancelled);
  submit(engine, request(prompt(10, 2), 3, {}))->wait();
  engine.drain();
  const EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.free_pages + metrics.shared_pages, metrics.pages);
}

TEST(Engine, Refusal_HasAReason) {
  LanguageModel model(small(), 3);
  EngineOptions options = kSmall;
  options.max_waiting = 2;
  options.max_running = 1;
  options.max_model_len = 5001;
  Engine engine(model, options);
  const auto refused = [&](const GenerationRequest& r) { return engine.submit(r, std::make_shared<Collector>()); };
  EXPECT_EQ(refused(request({}, 3, {})).refusal, Engine::Refusal::invalid);
  const auto outside = refused(request({3, 211}, 3, {}));
  EXPECT_EQ(outside.refusal, Engine::Refusal::invalid);
  EXPECT_THAT(outside.message, Names({"prompt", 211}));
  EXPECT_EQ(refused(request({3}, 3, {.top_p = 7})).refusal, Engine::Refusal::invalid);
  const auto too_long = refused(request({3}, 1'000'000, {}));
  EXPECT_EQ(too_long.refusal, Engine::Refusal::too_long);
  EXPECT_THAT(too_long.message, Names({1000001, 1, 1000000, "max_tokens", engine.max_request_tokens()}));
  auto running = std::make_shared<Collector>();
  const auto id = engine.submit(request({3}, 5000, {}), running).id;
  EXPECT_TRUE(running->wait_for_tokens(1));
  // The waiting requests may generate as many tokens as the running one, so they do not preempt it.
  std::vector<Engine::Id> waiting;
  for (int n = 0; n < 2; ++n)
    waiting.push_back(engine.submit(request({3}, 5000, {}), std::make_shared<Collector>()).id);
  EXPECT_EQ(refused(request({3}, 2, {})).refusal, Engine::Refusal::queue_full);
  engine.cancel(id);
  for (const Engine::Id one : waiting) engine.cancel(one);
  engine.drain();
  EXPECT_EQ(refused(request({3}, 2, {})).refusal, Engine::Refusal::stopping);
}

TEST(Engine, Jobs_RunBetweenSteps) {
  LanguageModel model(small(), 3);
  EngineOptions options = kSmall;
  options.max_waiting = 3;
  Engine engine(model, options);
  std::promise<void> begun, go_on;
  std::vector<std::pair<int, bool>> order;
  const auto add = [&](int n) {
    return engine.run_between_steps([&order, n](bool run) { order.emplace_back(n, run); });
  };
  engine.run_between_steps([&](bool) {
    begun.set_value();
    go_on.get_future().wait();
  });
  begun.get_future().wait();
  add(1);
  const auto second = add(2);
  EXPECT_EQ(add(3).refusal, Engine::Refusal::queue_full);
  EXPECT_EQ(engine.submit(request({3}, 2, {}), std::make_shared<Collector>()).refusal, Engine::Refusal::queue_full);
  engine.cancel(second.id);
  go_on.set_value();
  engine.drain();  // drain() also waits for jobs
  EXPECT_EQ(order, (std::vector<std::pair<int, bool>>{{2, false}, {1, true}}));
  EXPECT_EQ(add(4).refusal, Engine::Refusal::stopping);
  EXPECT_EQ(engine.metrics().waiting, 0);
}

TEST(Engine, Shutdown_CancelsWaitingJobs) {
  LanguageModel model(small(), 3);
  std::promise<void> begun, go_on;
  std::vector<bool> runs;
  std::thread later;
  {
    Engine engine(model, kSmall);
    engine.run_between_steps([&](bool) {
      begun.set_value();
      go_on.get_future().wait();
    });
    begun.get_future().wait();
    engine.run_between_steps([&](bool run) { runs.push_back(run); });
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // by now, the engine is shutting down
      go_on.set_value();
    });
  }
  later.join();
  EXPECT_EQ(runs, std::vector<bool>{false});
}

TEST(Engine, PositionTable_LimitsTheRequestLength) {
  ModelConfig c = small("learned");
  c.max_length = 30;
  LanguageModel model(c, 3);
  Engine engine(model, kSmall);
  EXPECT_EQ(engine.max_request_tokens(), 30);
  submit(engine, request(prompt(20, 1), 10, {}))->wait();
  EXPECT_EQ(engine.submit(request(prompt(20, 1), 11, {}), std::make_shared<Collector>()).refusal,
            Engine::Refusal::too_long);
}

// The logits of the model are NaN, as in a model that has diverged. The request that uses them fails with a message
// that names the reason, and the engine continues with other requests.
TEST(Engine, Failure_EndsOnlyItsRequest) {
  LanguageModel model(small(), 3);
  for (const auto& [name, tensor] : model.parameters()) {
    const at::NoGradGuard guard;
    if (name.find("embed") != std::string::npos) tensor.detach()[77].fill_(NAN);
  }
  Engine engine(model, kSmall);
  const auto good = submit(engine, request({1, 2, 3}, 5, {.temperature = 0}));
  const auto bad = submit(engine, request({1, 77, 3}, 5, {.temperature = 0}));
  EXPECT_EQ(bad->wait().reason, FinishReason::failed);
  EXPECT_THAT(bad->message, Names({"logits"}));
  EXPECT_EQ(good->wait().reason, FinishReason::length);
}

TEST(Engine, AbandonedDrain_ReturnsImmediately) {
  LanguageModel model(small(), 3);
  EngineOptions options = kSmall;
  options.max_running = 1;
  Engine engine(model, options);
  const auto runs = std::make_shared<Collector>(), waits = std::make_shared<Collector>();
  engine.submit(request(prompt(10, 2), 4000, {}), runs);
  engine.submit(request(prompt(10, 3), 4000, {}), waits);
  EXPECT_TRUE(runs->wait_for_tokens(2));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    engine.abandon();
  });
  engine.drain();
  other.join();
  EXPECT_EQ(runs->reason, FinishReason::cancelled);
  EXPECT_EQ(waits->reason, FinishReason::cancelled);
  EXPECT_EQ(engine.submit(request({3}, 2, {}), std::make_shared<Collector>()).refusal, Engine::Refusal::stopping);
}

TEST(Engine, Shutdown_CancelsRunningRequests) {
  LanguageModel model(small(), 3);
  const auto text = std::make_shared<Collector>();
  {
    Engine engine(model, kSmall);
    engine.submit(request(prompt(10, 2), 4000, {}), text);
    EXPECT_TRUE(text->wait_for_tokens(2));
  }
  EXPECT_EQ(text->reason, FinishReason::cancelled);
  EXPECT_EQ(text->ends, 1);
}

}  // namespace
}  // namespace lazy
