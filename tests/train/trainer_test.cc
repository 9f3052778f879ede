// Tests the training loop in this process: determinism, gradient accumulation, and losses that are compared with a
// recorded file.
#include "train/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/file.h"
#include "core/text.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "support/error_of.h"
#include "support/run_command.h"
#include "tiny_run.h"
#include "train/batches.h"
#include "train/optimizer.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;

std::vector<double> train_losses(const std::string& kind, const std::vector<std::string>& settings) {
  const ScratchFolder scratch;
  train(TrainConfig::load(write_tiny_config(scratch.path(), kind), settings), false);
  return losses(scratch / "run");
}

TEST(Trainer, SameSeed_GivesSameLossesForAnyPrefetchDepth) {
  const auto first = train_losses("lazy", {"training.steps=12"});
  ASSERT_EQ(first.size(), 12u);
  EXPECT_EQ(first, train_losses("lazy", {"training.steps=12"}));
  EXPECT_EQ(first, train_losses("lazy", {"training.steps=12", "data.prefetch=1"}));
  EXPECT_EQ(first, train_losses("lazy",
                                {"training.steps=12", "data.prefetch=64", "validation.every=0", "checkpoint.every=3"}));
  EXPECT_NE(first, train_losses("lazy", {"training.steps=12", "training.seed=43"}));
}

// All kinds of activation checkpointing must give the same losses, and the saved folder must be a valid GPT-2 folder.
TEST(Trainer, Gpt2_TrainsAndSavesAsGpt2) {
  const ScratchFolder scratch;
  train(TrainConfig::load(write_tiny_config(scratch.path(), "gpt2"), {}), false);
  const auto curve = losses(scratch / "run");
  EXPECT_GT(curve.front(), std::log(200));
  EXPECT_LT(curve.back(), std::log(27));
  const LanguageModel model = LanguageModel::load(scratch / "run/model");
  EXPECT_EQ(model.config().architecture(), "GPT2LMHeadModel");
  EXPECT_EQ(model.config().max_length, 64);
  EXPECT_TRUE(read_safetensors(scratch / "run/model/model.safetensors").contains("transformer.h.1.attn.c_attn.weight"));
  for (const char* how : {"mlp", "attention", "full"}) {
    const std::string setting = std::string("training.activation_checkpointing=") + how;
    EXPECT_EQ(train_losses("gpt2", {"training.steps=6", setting}), train_losses("gpt2", {"training.steps=6"})) << how;
  }
}

TEST(Trainer, Training_ReducesLoss) {
  const auto curve = train_losses("transformer", {});
  EXPECT_GT(curve.front(), std::log(200));  // at first, the loss is near a uniform guess over 259 ids
  EXPECT_LT(curve.back(), std::log(27));    // better than a uniform guess over 26 letters and the space
}

TEST(Trainer, Minutes_ShortenRunAndSchedule) {
  const ScratchFolder scratch;
  const auto file = write_tiny_config(scratch.path(), "lazy");
  const std::vector<std::string> settings{"training.steps=1000000",
                                          "training.minutes=0.05",
                                          "optimizer.lr=1e-3",
                                          "lr_scheduler.warmup_steps=2",
                                          "lr_scheduler.min_lr_factor=0.1",
                                          "validation.every=0",
                                          "metrics.attention_every=0",
                                          "checkpoint.every=0"};
  const TrainResult result = train(TrainConfig::load(file, settings), false);
  EXPECT_GT(result.step, 3);
  EXPECT_LT(result.step, 1'000'000);
  const auto log = log_without_times(scratch / "run");
  EXPECT_EQ(log.back()["step"], result.step);
  EXPECT_LT(log.back()["lr"].get<double>(), 3e-4);
  EXPECT_GE(log.back()["lr"].get<double>(), 1e-4);
  EXPECT_TRUE(fs::exists(scratch / "run/model/model.safetensors"));
  // the call returns immediately, because the run had already finished
  EXPECT_EQ(train(TrainConfig::load(file, settings), true).step, result.step);
}

TEST(Trainer, SufficientMinutes_ChangeNothing) {
  EXPECT_EQ(train_losses("lazy", {"training.steps=8", "training.minutes=60"}),
            train_losses("lazy", {"training.steps=8"}));
}

// Two micro-batches of four sequences are equivalent to one batch of eight: both contain the same sequences and have
// the same mean loss, up to rounding. The test compares the loss of the first step, which is computed before any
// update.
TEST(Trainer, Accumulation_IsTheMeanOverTheStep) {
  const std::vector<std::string> base{"training.steps=2", "lr_scheduler.warmup_steps=0"};
  auto whole = base;
  whole.insert(whole.end(), {"training.batch_size=8", "training.gradient_accumulation_steps=1"});
  const double parts = train_losses("lazy", base)[0], together = train_losses("lazy", whole)[0];
  // Each loss is a float of about 5.6. Sums of a few hundred float terms differ by a few units in the last place.
  EXPECT_NEAR(parts, together, 16 * std::numeric_limits<float>::epsilon() * together);
}

TEST(Trainer, GlobalBatchTokens_SetsAccumulation) {
  const ScratchFolder scratch;
  const fs::path path = scratch / "tiny.toml";
  std::ofstream(path) << "[data]\ncorpus = \"" << tiny_corpus().string()
                      << "\"\n[training]\nsteps = 1\nseq_len = 64\nbatch_size = 4\nglobal_batch_tokens = 1024\n";
  EXPECT_EQ(TrainConfig::load(path).accumulation, 4);
  EXPECT_EQ(TrainConfig::load(path).tokens_per_step(), 1024);
}

// Returns the first ten losses, computed with the components of the training loop. disturbance: relative change of the
// weights. Before every step, each weight is multiplied by 1 + disturbance * r, where r is -1, 0 or 1 and is drawn with
// `seed`.
std::vector<double> first_losses(const TrainConfig& config, double disturbance = 0, uint64_t seed = 0) {
  const Sequences sequences(config.corpus, "train", config.sequences);
  ModelConfig shape = config.model;
  shape.vocab_size = sequences.vocab_size();
  LanguageModel model(shape, config.seed);
  at::globalContext().setFlushDenormal(true);
  at::manual_seed(seed);
  AdamW optimizer(model.parameters(), config.optimizer, [&](const std::string& name) { return model.decays(name); });
  std::vector<double> out;
  for (int64_t step = 0, position = 0; step < 10; ++step) {
    if (disturbance > 0) {
      at::NoGradGuard no_grad;
      for (const auto& [name, parameter] : model.parameters()) {
        at::Tensor handle = parameter;
        handle.mul_(1 + disturbance * (at::randint(3, parameter.sizes()) - 1).to(at::kFloat));
      }
    }
    double loss = 0;
    for (int64_t micro = 0; micro < config.accumulation; ++micro, position += config.batch_size) {
      const Batch batch = read_batch(sequences, position, config.batch_size, config.seq_len);
      const at::Tensor part = model.loss(batch.ids, batch.labels) / static_cast<double>(config.accumulation);
      part.backward();
      loss += part.item<double>();
    }
    optimizer.step(config.schedule.rate(step), optimizer.gradient_norm(), config.max_norm);
    out.push_back(loss);
  }
  return out;
}

// A refactoring must not change any loss. The file contains the losses of one machine; other machines compute sums in a
// different order. Therefore the test measures the effect of rounding instead of using a fixed tolerance. In a step,
// each activation passes through about sixteen layers of sums, so every weight is changed by sixteen rounding errors
// before each step. This is repeated three times, and twice the largest change of a loss is allowed. To update the file
// after an intended change, run: LAZY_UPDATE_GOLDEN=1 build/tests/train_tests --gtest_filter=*Golden*
TEST(Trainer, GoldenLosses_MatchRecordedFile) {
  const fs::path golden_path = fs::path(LAZY_SOURCE_DIR) / "tests/train/golden/losses.json";
  nlohmann::ordered_json written;
  for (const std::string kind : {"lazy", "transformer"}) {
    SCOPED_TRACE(kind);
    const ScratchFolder scratch;
    const TrainConfig config =
        TrainConfig::load(write_tiny_config(scratch.path(), kind), {"training.dtype=fp32", "optimizer.lr=2e-3"});
    const auto found = first_losses(config);
    written[kind] = found;
    if (std::getenv("LAZY_UPDATE_GOLDEN")) continue;
    train(config, false);
    const auto logged = losses(scratch / "run");
    // the training loop computes exactly the same losses
    EXPECT_EQ(std::vector<double>(logged.begin(), logged.begin() + 10), found);
    const auto expected = nlohmann::json::parse(read_file(golden_path)).at(kind).get<std::vector<double>>();
    ASSERT_EQ(expected.size(), found.size());
    std::vector<double> carried(found.size());
    for (const uint64_t seed : {1, 2, 3}) {
      const auto disturbed = first_losses(config, 16 * std::numeric_limits<float>::epsilon(), seed);
      for (size_t i = 0; i < found.size(); ++i) carried[i] = std::max(carried[i], std::abs(disturbed[i] - found[i]));
    }
    for (size_t i = 0; i < found.size(); ++i) {
      if (i > 0) carried[i] = std::max(carried[i], carried[i - 1]);
      EXPECT_NEAR(found[i], expected[i], 2 * carried[i] + std::numeric_limits<float>::epsilon() * expected[i])
          << "step " << i + 1;
    }
    // Checks that the comparison is sensitive: if the learning rate changes by 0.1 %, the loss must change by more than
    // the tolerance.
    auto slipped = config;
    slipped.schedule.peak *= 1.001;
    EXPECT_GT(std::abs(first_losses(slipped).back() - found.back()), 2 * carried.back());
  }
  if (std::getenv("LAZY_UPDATE_GOLDEN")) {
    write_file_atomic(golden_path, written.dump(1) + "\n");
    GTEST_SKIP() << "wrote " << golden_path;
  }
}

// `lazy train` executes itself again with a lower OpenMP spin count. libgomp prints its settings when it is loaded, so
// the test can read the count.
TEST(Trainer, Threads_DoNotSpinLongAtBarriers) {
  const ScratchFolder scratch;
  const std::string config = write_tiny_config(scratch.path()).string();
  const auto spin_counts = [&](const std::string& variables) {
    const auto [status, output] =
        run_command(fmt::format("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose {} {} train {} "
                                "--set training.steps=1 --set lr_scheduler.warmup_steps=1 2>&1 | "
                                "grep -o \"SPINCOUNT = '[0-9]*'\" | grep -Eo '[0-9]+'",
                                variables, LAZY_BINARY, config));
    fs::remove_all(scratch / "run");
    std::vector<int64_t> counts;
    for (const std::string& line : split(output, '\n')) {
      if (!line.empty()) counts.push_back(std::stoll(line));
    }
    return counts;
  };
  const std::vector<int64_t> counts = spin_counts("");
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_LT(counts[1], counts[0]);
  EXPECT_EQ(spin_counts("GOMP_SPINCOUNT=77"), std::vector<int64_t>{77}) << "the setting of the user must be kept";
  EXPECT_EQ(spin_counts("OMP_WAIT_POLICY=passive"), std::vector<int64_t>{0});
}

std::string train_error(const std::vector<std::string>& settings) {
  const ScratchFolder scratch;
  return error_of([&] { train(TrainConfig::load(write_tiny_config(scratch.path()), settings), false); });
}

TEST(Trainer, InvalidSettings_ErrorNamesThem) {
  EXPECT_THAT(train_error({"training.stepz=3"}),
              IsMessage("config: --set: unknown key 'stepz' in [training]; did you mean 'steps'?"));
  EXPECT_THAT(train_error({"optimiser.lr=3"}), Names({"[optimiser]", "[optimizer]"}));
  EXPECT_THAT(train_error({"model.vocab_size=100"}), Names({"model.vocab_size", tiny_corpus().string(), 100}));
  EXPECT_THAT(train_error({"training.device=cuda"}), Names({"training.device", "cuda"}));
  EXPECT_THAT(train_error({"training.global_batch_tokens=512"}),
              Names({"[training]", "gradient_accumulation_steps", "global_batch_tokens"}));
  EXPECT_THAT(train_error({"lr_scheduler.warmup_steps=41"}),
              Names({"lr_scheduler.warmup_steps", "training.steps", 40, 41}));
  EXPECT_THAT(train_error({"data.corpus=/nonexistent"}), Names({"/nonexistent"}));
  EXPECT_THAT(train_error({"training.on_spike=skip"}), Names({"training.on_spike", "training.spike_factor", 1}));
  EXPECT_THAT(train_error({"training.spike_factor=0.5"}), Names({"training.spike_factor", 0, 1, "0.5"}));
  EXPECT_THAT(train_error({"checkpoint.export=always"}), Names({"checkpoint.export", "end", "every", "always"}));
  EXPECT_THAT(train_error({"training.batch_size=0"}),
              IsMessage("config: --set: training.batch_size: expected at least 1, found 0"));
  EXPECT_THAT(train_error({"training.precision=fp4"}), Names({"training.precision", "dtype", "fp8", "fp4"}));
  EXPECT_THAT(train_error({"training.precision=fp8", "training.device=cpu"}),
              Names({"training.precision", "fp8", "8.9", "CPU"}));
  EXPECT_THAT(train_error({"training.precision=fp8", "training.dtype=fp32"}),
              Names({"training.precision", "fp8", "training.dtype", "bf16", "fp32"}));
  EXPECT_THAT(train_error({"data.validation_split=test"}), Names({"\"test\"", "train", "validation"}));
}

}  // namespace
}  // namespace lazy::train
