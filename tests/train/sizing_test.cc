// Tests the choices of `lazy init` on simulated machines whose speed is a formula.
#include "train/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/text.h"
#include "model/parameters.h"
#include "support/error_of.h"
#include "train/memory_estimate.h"
#include "train/throughput.h"

namespace lazy::train {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

SizingRequest request(double seconds, int64_t tokens) {
  SizingRequest r;
  r.train_tokens = tokens;
  r.validation_tokens = tokens / 20;
  r.vocab_size = 8192;
  r.seconds = seconds;
  r.memory = 64 * kGib;
  return r;
}

// A simulated machine that computes `flops` FLOP/s and needs `fixed` additional seconds per micro-batch.
struct Machine {
  double flops = 1e11, fixed = 0.002;
  int calls = 0;
  double speed(const RunSize& size, const SizingRequest& r) const {
    const auto tokens = static_cast<double>(size.batch_size * size.seq_len);
    return tokens / (tokens * flops_per_token(model_of(size, r), size.seq_len) / flops + fixed);
  }
  RunSize choose(const SizingRequest& r) {
    return choose_size(r, [&](const RunSize& size, double, double seconds) {
      ++calls;
      EXPECT_GT(seconds, 0);
      return speed(size, r);
    });
  }
};

TEST(Sizing, LongText_RunIsLimitedByTime) {
  Machine machine;
  for (const double minutes : {3.0, 30.0, 600.0}) {
    const SizingRequest r = request(60 * minutes, int64_t{1} << 40);
    const RunSize size = machine.choose(r);
    EXPECT_FALSE(size.limited_by_text);
    const double tokens = static_cast<double>(size.steps * size.step_tokens());
    const double stepping = tokens / machine.speed(size, r);
    EXPECT_LT(stepping, (kStepsShare + 0.01) * r.seconds) << minutes;
    EXPECT_GT(stepping, (kStepsShare - 0.1) * r.seconds) << minutes;
    EXPECT_LE(size.seconds, 1.01 * r.seconds);
    // The chosen model must be trained on about 20 tokens per parameter. The range is wide because the parameter counts
    // of adjacent model shapes differ by a factor of two to three.
    const double ratio = tokens / static_cast<double>(size.layer_parameters);
    EXPECT_GT(ratio, 6) << minutes;
    EXPECT_LT(ratio, 70) << minutes;
  }
}

TEST(Sizing, MoreTime_NeverGivesSmallerModel) {
  int64_t before = 0;
  for (double seconds = 10; seconds < 1e6; seconds *= 3) {
    const int64_t parameters = Machine().choose(request(seconds, int64_t{1} << 40)).layer_parameters;
    EXPECT_GE(parameters, before) << seconds;
    before = parameters;
  }
  EXPECT_GT(before, 10'000'000);
}

TEST(Sizing, ShortText_RunIsLimitedByPasses) {
  for (const double seconds : {36e3, 36e5}) {
    const SizingRequest r = request(seconds, 2'000'000);
    const RunSize size = Machine().choose(r);
    EXPECT_TRUE(size.limited_by_text);
    EXPECT_LE(size.passes, kMaxPasses);
    EXPECT_GT(size.passes, kMaxPasses - 0.1);
    EXPECT_LT(size.seconds, r.seconds);
    EXPECT_GT(size.layer_parameters, 1'000'000);
    EXPECT_LE(size.layer_parameters, size.steps * size.step_tokens() * 101 / 100);  // at least one token per parameter
  }
}

TEST(Sizing, OnlyPromisingShapes_AreMeasured) {
  Machine machine;
  machine.choose(request(1800, int64_t{1} << 40));
  EXPECT_LT(machine.calls, static_cast<int>(shape_ladder().size()));
}

TEST(Sizing, LittleMemory_UsesSmallerMicroBatches) {
  SizingRequest r = request(6000, int64_t{1} << 40);
  // On this machine the speed does not depend on the batch size. With less memory, only the batch size may therefore
  // change.
  const RunSize before = Machine{.fixed = 0}.choose(r);
  r.memory = before.memory * 3 / 4;
  const RunSize tight = Machine{.fixed = 0}.choose(r);
  EXPECT_LE(tight.memory, r.memory);
  EXPECT_EQ(tight.shape.hidden_size, before.shape.hidden_size);
  EXPECT_LT(tight.batch_size, before.batch_size);
  EXPECT_EQ(tight.step_tokens(), before.step_tokens());
}

TEST(Sizing, MeasuredModel_MatchesConfiguration) {
  const SizingRequest r = request(600, int64_t{1} << 40);
  const RunSize size = Machine().choose(r);
  const ModelConfig model = model_of(size, r);
  const ParameterCount count = count_parameters(model);
  EXPECT_EQ(model.kind(), "lazy");
  EXPECT_EQ(size.parameters, size.tied ? count.tied : count.untied);
  EXPECT_EQ(size.layer_parameters, count.untied - 2 * r.vocab_size * size.shape.hidden_size);
  EXPECT_EQ(model.attention.head_dim * model.attention.num_heads, size.shape.hidden_size);
  MemoryQuery query;
  query.model = model;
  query.batch_size = size.batch_size;
  query.seq_len = size.seq_len;
  query.accumulation = size.accumulation;
  query.bf16 = query.gpu = false;
  EXPECT_EQ(size.memory, peak_bytes(query));
}

TEST(Sizing, Validation_TakesATwentiethOfTheTime) {
  for (const double seconds : {60.0, 36000.0}) {
    const SizingRequest r = request(seconds, int64_t{1} << 40);
    const RunSize size = Machine().choose(r);
    const double forward = static_cast<double>(size.validation_batches) / 3;
    EXPECT_LE(forward, 0.051 * static_cast<double>(size.validation_every * size.accumulation));
  }
}

TEST(Sizing, ImpossibleRequest_IsAnError) {
  EXPECT_THAT(error_of([] { Machine().choose(request(600, 1000)); }), Names({1000, 50}));
  SizingRequest r = request(600, int64_t{1} << 40);
  r.memory = 1 << 20;
  EXPECT_THAT(error_of([&] { Machine().choose(r); }), Names({"memory", human_bytes(1 << 20)}));
}

TEST(Sizing, VocabularyAndDocumentSize_FitTheText) {
  EXPECT_EQ(tokenizer_pieces(100'000), 0);  // 0: the text is too small to train a tokenizer, so `bytes` is used
  EXPECT_EQ(tokenizer_pieces(1'100'000), 2048);
  EXPECT_EQ(tokenizer_pieces(2'000'000), 4096);
  EXPECT_EQ(tokenizer_pieces(int64_t{1} << 40), 32768);
  EXPECT_EQ(cut_documents_at(2'000'000, 500), 0);
  EXPECT_EQ(cut_documents_at(2'000'000, 10), 8192);
  EXPECT_EQ(cut_documents_at(50'000, 1), 1024);
  EXPECT_EQ(cut_documents_at(int64_t{1} << 40, 3), 65536);
}

}  // namespace
}  // namespace lazy::train
