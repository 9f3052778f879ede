// Tests of the engine with caches for which a decode step is captured as a CUDA graph (model/graphed_state_runner.h).
// It is compared with full forward passes and with kernels that are launched individually. LAZY_TEST_DEVICE=cuda runs
// the tests on a GPU with CUDA graphs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/language_model.h"
#include "model/mixers/registry.h"
#include "ops/device.h"
#include "serve/engine_texts.h"

namespace lazy {
namespace {

using namespace engine_texts;

ModelConfig config_of(const std::string& mixer) {
  ModelConfig c = small("softmax");
  use_mixer(c, *find_mixer(mixer));
  c.mixer.heads = 2;
  c.mixer.chunk = 4;
  c.init_std = 0.15;
  mixer_kind(c).infer_sizes(c);
  return c;
}

EngineOptions with_recording(bool record) {
  EngineOptions options = kSmall;
  options.decode_runner = true;
  options.record_steps = record;
  return options;
}

class RecordedCaches : public ::testing::TestWithParam<std::string> {
 protected:
  RecordedCaches() : model_(config_of(GetParam()), 5) { model_.to(ops::test::test_device()); }
  LanguageModel model_;
};

TEST_P(RecordedCaches, GreedyDecode_MatchesFullForward) {
  LanguageModel reference(config_of(GetParam()), 5);
  Engine engine(model_, with_recording(true));
  std::vector<std::shared_ptr<Collector>> texts;
  const std::vector<size_t> lengths{1, 3, 16, 40};
  for (const size_t length : lengths) {
    texts.push_back(submit(engine, request(prompt(length, length), 25, {.temperature = 0})));
  }
  for (size_t n = 0; n < lengths.size(); ++n) {
    EXPECT_EQ(texts[n]->wait().ids(), greedy_by_full_forwards(reference, prompt(lengths[n], lengths[n]), 25))
        << "prompt length " << lengths[n];
  }
}

TEST_P(RecordedCaches, Text_IsIndependentOfOtherRequestsAndGraphCapture) {
  std::vector<GenerationRequest> requests;
  for (size_t n = 0; n < 5; ++n) {
    requests.push_back(
        request(prompt(1 + 9 * n, n), static_cast<int64_t>(9 + 7 * n), {.temperature = 0.9, .seed = n + 1}));
    requests.back().logprobs = 4;
  }
  const auto texts_of = [&](bool record, bool together) {
    Engine engine(model_, with_recording(record));
    std::vector<std::shared_ptr<Collector>> texts;
    for (const GenerationRequest& one : requests) {
      texts.push_back(submit(engine, one));
      if (!together) texts.back()->wait();
    }
    for (const auto& text : texts) EXPECT_EQ(text->wait().reason, FinishReason::length) << text->message;
    return texts;
  };
  const auto together = texts_of(true, true), alone = texts_of(true, false), unrecorded = texts_of(false, true);
  for (size_t n = 0; n < requests.size(); ++n) {
    EXPECT_TRUE(same(together[n]->tokens, alone[n]->tokens)) << "request " << n;
    EXPECT_EQ(together[n]->ids(), unrecorded[n]->ids()) << "request " << n;
  }
}

TEST_P(RecordedCaches, CancelledRequest_DoesNotChangeOtherTexts) {
  LanguageModel reference(config_of(GetParam()), 5);
  Engine engine(model_, with_recording(true));
  for (const size_t length : {5, 6}) {
    auto gone = std::make_shared<Collector>();
    const auto submission = engine.submit(request(prompt(10, 2), 4000, {}), gone);
    ASSERT_EQ(submission.refusal, Engine::Refusal::none) << submission.message;
    const auto stays = submit(engine, request(prompt(length, length), 30, {.temperature = 0}));
    EXPECT_TRUE(gone->wait_for_tokens(9));
    engine.cancel(submission.id);
    EXPECT_EQ(gone->wait().reason, FinishReason::cancelled);
    EXPECT_EQ(stays->wait().ids(), greedy_by_full_forwards(reference, prompt(length, length), 30));
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, RecordedCaches,
                         ::testing::Values("retnet", "mamba2", "delta_net", "gated_delta_net", "ttt_linear"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace lazy
