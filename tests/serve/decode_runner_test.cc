// Tests of the engine with sampling on the device. It is compared with sampling on the host and with full forward
// passes. LAZY_TEST_DEVICE=cuda runs the tests on a GPU with CUDA graphs. On a CPU, decode steps run without graphs.
#include "serve/decode_runner.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>

#include <thread>

#include "model/forward_options.h"
#include "ops/device.h"
#include "serve/engine_texts.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using namespace engine_texts;

bool on_gpu() { return ops::test::test_device().is_cuda(); }

// Returns a small model. On a GPU, the model is in bf16, for which the kernels for small batches compute each row
// independently of the batch. On other devices, the model is in fp32.
LanguageModel model_of(const std::string& kind, at::ScalarType dtype = on_gpu() ? at::kBFloat16 : at::kFloat) {
  ModelConfig c = small(kind);
  c.hidden_size = 64;
  c.attention.head_dim = 16;
  LanguageModel model(c, 3);
  model.set_compute_dtype(dtype);
  model.to(ops::test::test_device());
  return model;
}

EngineOptions with_steps(bool record = true) {
  EngineOptions options = kSmall;
  options.max_running = 16;
  options.decode_runner = true;
  options.record_steps = record;
  return options;
}

// Returns sampling options that together cover every kind of sampling.
std::vector<SamplingOptions> samplings() {
  std::vector<SamplingOptions> all{{.temperature = 0},
                                   {.temperature = 0.9, .seed = 1},
                                   {.temperature = 0.8, .top_k = 7, .seed = 2},
                                   {.temperature = 1.2, .top_p = 0.8, .seed = 3},
                                   {.temperature = 1, .top_k = 30, .top_p = 0.9, .seed = 4, .min_p = 0.02},
                                   {.temperature = 1, .seed = 5, .min_p = 0.05},
                                   {.temperature = 0.9, .repetition_penalty = 1.3, .seed = 6},
                                   {.temperature = 0, .presence_penalty = 0.6, .frequency_penalty = 0.4},
                                   {.temperature = 0.9, .seed = 8, .logit_bias = {{17, 4.0F}, {18, -100.0F}}}};
  return all;
}

std::vector<GenerationRequest> mixed_requests() {
  std::vector<GenerationRequest> all;
  for (const SamplingOptions& sampling : samplings()) {
    const size_t n = all.size();
    all.push_back(request(prompt(1 + 9 * n, n), static_cast<int64_t>(10 + 5 * n), sampling));
    if (n % 3 == 0) all.back().logprobs = 4;
    if (n % 4 == 1) all.back().prompt_logprobs = true;  // prompts that are scored are computed in separate passes
  }
  return all;
}

std::vector<std::vector<ScoredToken>> texts_of(LanguageModel& model, const EngineOptions& options,
                                               const std::vector<GenerationRequest>& requests, bool together) {
  Engine engine(model, options);
  std::vector<std::vector<ScoredToken>> out;
  std::vector<std::shared_ptr<Collector>> texts;
  for (const GenerationRequest& one : requests) {
    texts.push_back(submit(engine, one));
    if (!together) texts.back()->wait();
  }
  for (const auto& text : texts) {
    out.push_back(text->wait().tokens);
    EXPECT_EQ(text->reason, FinishReason::length) << text->message;
  }
  return out;
}

std::vector<int64_t> ids_of(const std::vector<ScoredToken>& tokens) {
  std::vector<int64_t> out;
  for (const ScoredToken& token : tokens) out.push_back(token.id);
  return out;
}

class DecodeRunnerModels : public ::testing::TestWithParam<std::string> {};

// The texts must match full forward passes of a reference model on the CPU. Both models are in fp32, so their logits
// are equal up to rounding.
TEST_P(DecodeRunnerModels, GreedyDecode_MatchesFullForward) {
  LanguageModel model = model_of(GetParam(), at::kFloat), reference = model_of(GetParam(), at::kFloat);
  reference.to(at::kCPU);
  Engine engine(model, with_steps());
  std::vector<std::shared_ptr<Collector>> texts;
  const std::vector<size_t> lengths{1, 2, 7, 8, 9, 15, 16, 17, 33, 100};
  for (const size_t length : lengths) {
    texts.push_back(submit(engine, request(prompt(length, length), 30, {.temperature = 0})));
  }
  for (size_t n = 0; n < lengths.size(); ++n) {
    EXPECT_EQ(texts[n]->wait().ids(), greedy_by_full_forwards(reference, prompt(lengths[n], lengths[n]), 30))
        << "prompt length " << lengths[n];
    EXPECT_EQ(texts[n]->ends, 1);
  }
}

// While a text is generated, other requests join and leave, so the batch size changes. The text must not change.
TEST_P(DecodeRunnerModels, Text_IsIndependentOfBatchAndGraphCapture) {
  LanguageModel model = model_of(GetParam());
  const std::vector<GenerationRequest> requests = mixed_requests();
  const auto together = texts_of(model, with_steps(), requests, true);
  const auto alone = texts_of(model, with_steps(), requests, false);
  const auto unrecorded = texts_of(model, with_steps(false), requests, true);
  for (size_t n = 0; n < requests.size(); ++n) {
    if (on_gpu()) {
      EXPECT_TRUE(same(together[n], unrecorded[n])) << "request " << n;
      EXPECT_TRUE(same(together[n], alone[n])) << "request " << n;
    } else {
      // On other devices, the arrival times of requests determine the sizes of prefill passes and thus the order of
      // additions.
      EXPECT_EQ(ids_of(together[n]), ids_of(unrecorded[n])) << "request " << n;
      EXPECT_EQ(ids_of(together[n]), ids_of(alone[n])) << "request " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodeRunnerModels,
                         ::testing::Values("lazy", "softmax", "window", "sink", "learned", "sinusoidal", "alibi",
                                           "none"),
                         [](const auto& info) { return info.param; });

// A prefill pass is captured as a graph when its shape occurs for the second time. The same prompt is therefore scored
// several times, and the scores must not change.
TEST(DecodeRunner, PromptScores_AreEqualAfterGraphCapture) {
  for (const char* kind : {"lazy", "window", "learned"}) {
    LanguageModel model = model_of(kind);
    for (const size_t length : {3, 100, 700}) {
      GenerationRequest one = request(prompt(length, length), 1, {.temperature = 0});
      one.prompt_logprobs = true;
      one.logprobs = 2;
      Engine engine(model, with_steps()), unrecorded(model, with_steps(false));
      const auto scores = [&](Engine& by) {
        const auto text = submit(by, one);
        return text->wait().prompt;
      };
      const std::vector<ScoredToken> expected = scores(unrecorded);
      EXPECT_EQ(expected.size(), length);
      for (int n = 0; n < 4; ++n)
        EXPECT_TRUE(same(scores(engine), expected)) << kind << ", " << length << ", time " << n;
    }
  }
}

// If the sizes allow it, one fused kernel computes all layers for a single sequence (ops/fused_decode_layers.h). For
// several sequences, separate kernels compute them. The texts must be equal.
TEST(DecodeRunner, FusedLayers_GiveTheSameText) {
  if (!on_gpu()) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  for (const char* kind : {"lazy", "softmax"}) {
    ModelConfig c = small(kind);
    c.hidden_size = 256;
    c.attention.num_heads = c.attention.num_kv_heads = 4;
    c.attention.head_dim = 64;
    c.mlp.intermediate_size = 512;
    LanguageModel model(c, 3);
    model.set_compute_dtype(at::kBFloat16);
    model.to(ops::test::test_device());
    EngineOptions options = with_steps();
    options.page_tokens = 16;
    const std::vector<GenerationRequest> requests = mixed_requests();
    const auto together = texts_of(model, options, requests, true), alone = texts_of(model, options, requests, false);
    for (size_t n = 0; n < requests.size(); ++n) EXPECT_TRUE(same(together[n], alone[n])) << kind << ", request " << n;
  }
}

// The model is in fp32, so that the logits on the device and on the host are equal and sampling must select the same
// tokens.
TEST(DecodeRunner, SampledToken_MatchesTheHost) {
  LanguageModel model = model_of("lazy", at::kFloat);
  EngineOptions host = with_steps();
  host.decode_runner = false;
  host.rows = 16;
  const std::vector<GenerationRequest> requests = mixed_requests();
  const auto expected = texts_of(model, host, requests, false), found = texts_of(model, with_steps(), requests, false);
  for (size_t n = 0; n < requests.size(); ++n) EXPECT_EQ(ids_of(found[n]), ids_of(expected[n])) << "request " << n;
}

TEST(DecodeRunner, LogProbabilities_MatchTheModel) {
  LanguageModel model = model_of("softmax", at::kFloat), reference = model_of("softmax", at::kFloat);
  reference.to(at::kCPU);
  GenerationRequest one = request(prompt(50, 2), 8, {.temperature = 0.7, .top_k = 5, .seed = 1});
  one.logprobs = 5;
  one.prompt_logprobs = true;
  Engine engine(model, with_steps());
  const auto text = submit(engine, one);
  text->wait();
  ASSERT_EQ(text->tokens.size(), 8U);
  std::vector<int64_t> all = one.prompt;
  for (const ScoredToken& token : text->tokens) all.push_back(token.id);
  const at::NoGradGuard guard;
  const at::Tensor logits = reference.logits(reference.forward(at::tensor(all, at::kLong).unsqueeze(0)).hidden);
  const at::Tensor expected = at::log_softmax(logits[0].to(at::kDouble), -1);
  std::vector<ScoredToken> scored = text->prompt;
  scored.insert(scored.end(), text->tokens.begin(), text->tokens.end());
  for (size_t n = 1; n < scored.size(); ++n) {
    const at::Tensor row = expected[static_cast<int64_t>(n) - 1];
    EXPECT_NEAR(scored[n].logprob, row[all[n]].item<double>(), 1e-4);
    const auto [values, indices] = row.topk(5);
    ASSERT_EQ(scored[n].likely.size(), 5U);
    for (int64_t k = 0; k < 5; ++k) {
      const auto& [id, logprob] = scored[n].likely[static_cast<size_t>(k)];
      EXPECT_EQ(id, indices[k].item<int64_t>());
      EXPECT_NEAR(logprob, values[k].item<double>(), 1e-4);
      EXPECT_TRUE(id != scored[n].id || logprob == scored[n].logprob);  // values of one token must be bitwise equal
    }
  }
}

TEST(DecodeRunner, StopToken_IsTheLastToken) {
  LanguageModel model = model_of("lazy");
  Engine engine(model, with_steps());
  GenerationRequest one = request(prompt(20, 2), 30, {.temperature = 0});
  const std::vector<int64_t> whole = submit(engine, one)->wait().ids();
  ASSERT_EQ(whole.size(), 30U);
  one.stop_tokens = {whole[4]};
  const auto stopped = submit(engine, one);
  EXPECT_EQ(stopped->wait().reason, FinishReason::stop);
  const auto place = std::find(whole.begin(), whole.end(), whole[4]);
  EXPECT_EQ(stopped->ids(), std::vector<int64_t>(whole.begin(), place + 1));
  one.stop_tokens = {};
  auto wants = std::make_shared<Collector>();
  wants->most = 3;
  engine.submit(one, wants);
  EXPECT_EQ(wants->wait().reason, FinishReason::stop);
  EXPECT_EQ(wants->tokens.size(), 3U);
}

// Requests arrive, end and are cancelled during every step. The texts of the remaining requests must not change, and no
// page of the cache may be lost.
TEST(DecodeRunner, JoiningAndLeavingRequests_DoNotChangeOtherTexts) {
  LanguageModel model = model_of("lazy");
  const GenerationRequest one = request(prompt(37, 1), 60, {.temperature = 0.9, .top_p = 0.95, .seed = 5});
  const auto expected = texts_of(model, with_steps(), {one}, true)[0];
  EngineOptions options = with_steps();
  // Enough memory for all requests: if one were preempted and recomputed, its text would be rounded differently.
  options.cache_bytes = 4 << 20;
  Engine engine(model, options);
  std::mt19937_64 random(7);
  std::vector<std::shared_ptr<Collector>> kept, others;
  for (int round = 0; round < 60; ++round) {
    if (round % 6 == 0) kept.push_back(submit(engine, one));
    const auto other = std::make_shared<Collector>();
    SamplingOptions sampling = samplings()[random() % samplings().size()];
    const auto id =
        engine.submit(request(prompt(1 + random() % 60, random() % 4), 1 + random() % 40, sampling), other).id;
    if (random() % 2) {
      other->wait_for_tokens(1 + random() % 5);
      engine.cancel(id);
    }
    others.push_back(other);
  }
  for (const auto& text : kept) EXPECT_EQ(text->wait().ids(), ids_of(expected));
  for (const auto& text : others) {
    text->wait();
    EXPECT_EQ(text->ends, 1);
    EXPECT_NE(text->reason, FinishReason::failed) << text->message;
  }
  engine.drain();
  const EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.preemptions, 0);
  EXPECT_EQ(metrics.free_pages + metrics.shared_pages, metrics.pages);
}

TEST(DecodeRunner, Failure_EndsOnlyItsRequest) {
  LanguageModel model = model_of("lazy");
  for (const auto& [name, tensor] : model.parameters()) {
    const at::NoGradGuard guard;
    if (name.find("embed") != std::string::npos) tensor.detach()[77].fill_(NAN);
  }
  Engine engine(model, with_steps());
  const auto good = submit(engine, request({1, 2, 3}, 5, {.temperature = 0}));
  const auto bad = submit(engine, request({1, 77, 3}, 5, {.temperature = 0}));
  const auto outside = submit(engine, request({1}, 5, {.logit_bias = {{211, 1.0F}}}));
  EXPECT_EQ(bad->wait().reason, FinishReason::failed);
  EXPECT_THAT(bad->message, Names({"logits"}));
  EXPECT_EQ(outside->wait().reason, FinishReason::failed);
  EXPECT_THAT(outside->message, Names({"bias", 211}));
  EXPECT_EQ(good->wait().reason, FinishReason::length);
}

TEST(DecodeRunner, Memory_DoesNotGrow) {
  if (!on_gpu()) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  LanguageModel model = model_of("lazy");
  Engine engine(model, with_steps());
  const auto round = [&] {
    std::vector<std::shared_ptr<Collector>> texts;
    for (const GenerationRequest& one : mixed_requests()) texts.push_back(submit(engine, one));
    for (const auto& text : texts) text->wait();
    while (engine.metrics().running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(0).allocated_bytes[0].current;
  };
  // The arrival times of requests vary, so a round may capture graphs for new shapes. There are finitely many shapes,
  // so the memory must stop growing.
  int64_t before = round();
  int flat = 0;
  for (int n = 0; n < 40 && flat < 5; ++n) {
    const int64_t now = round();
    flat = now == before ? flat + 1 : 0;
    before = now;
  }
  EXPECT_EQ(flat, 5);
}

// If the model stores its weights only in the compute precision, the texts must be the same as if it stores fp32
// weights and casts them.
TEST(DecodeRunner, ConvertedWeights_GiveTheSameText) {
  LanguageModel model = model_of("lazy", at::kBFloat16);
  const auto expected = texts_of(model, with_steps(), mixed_requests(), false);
  model.hold_compute_dtype();
  for (const auto& [name, tensor] : model.parameters()) {
    if (tensor.dim() == 2 && name.find("proj") != std::string::npos) {
      EXPECT_EQ(tensor.scalar_type(), at::kBFloat16) << name;
    }
  }
  const auto found = texts_of(model, with_steps(), mixed_requests(), false);
  for (size_t n = 0; n < found.size(); ++n) EXPECT_TRUE(same(found[n], expected[n])) << "request " << n;
}

}  // namespace
}  // namespace lazy
