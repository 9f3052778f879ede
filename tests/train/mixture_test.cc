// Tests corpus mixtures and packings in a configuration: parsing, rejected values, and what a run reports about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/file.h"
#include "support/error_of.h"
#include "tiny_run.h"
#include "train/trainer.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;

std::string corpora() { return "[\"" + tiny_corpus().string() + "\", \"" + tiny_corpus().string() + "\"]"; }

std::string error(const std::vector<std::string>& settings) {
  const ScratchFolder scratch;
  return error_of([&] { TrainConfig::load(write_tiny_config(scratch.path()), settings); });
}

TEST(MixtureConfig, MixtureConfig_RoundTrips) {
  const ScratchFolder scratch;
  const TrainConfig config = TrainConfig::load(
      write_tiny_config(scratch.path()), {"data.corpus=" + corpora(), "data.weights=[3, 1.5]", "data.packing=windows"});
  EXPECT_EQ(config.corpus.paths.size(), 2u);
  EXPECT_EQ(config.corpus.weights, (std::vector<double>{3, 1.5}));
  EXPECT_EQ(config.sequences.packing, Packing::windows);
  std::ofstream(scratch / "again.toml") << config.toml;
  const TrainConfig again = TrainConfig::load(scratch / "again.toml");
  EXPECT_EQ(again.toml, config.toml);
  EXPECT_EQ(again.settings(), config.settings());
}

TEST(MixtureConfig, InvalidMixture_ErrorNamesKeyAndValue) {
  EXPECT_THAT(error({"data.corpus=" + corpora(), "data.weights=[1]"}), Names({"data.weights", 2, 1}));
  EXPECT_THAT(error({"data.corpus=" + corpora(), "data.weights=[1, -2]"}), Names({"data.weights", 0, -2}));
  EXPECT_THAT(error({"data.corpus=[]"}), Names({"data.corpus"}));
  EXPECT_THAT(error({"data.packing=window"}), Names({"data.packing", "groups", "windows", "window"}));
  EXPECT_THAT(error({"data.bos_per_document=true", "data.eos_per_document=true"}),
              Names({"[data]", "bos_per_document", "eos_per_document"}));
}

TEST(MixtureRun, MixtureRun_LogsSharesAndResumes) {
  const ScratchFolder scratch;
  const fs::path path = write_tiny_config(scratch.path());
  std::vector<std::string> settings{"data.corpus=" + corpora(), "data.weights=[3, 1]", "data.packing=windows",
                                    "training.steps=12", "checkpoint.every=4"};
  train(TrainConfig::load(path, settings), false);
  const auto whole = losses(scratch / "run");
  const auto run = nlohmann::json::parse(read_file(scratch / "run" / "run.json")).at("corpus").at("parts");
  ASSERT_EQ(run.size(), 2u);
  EXPECT_EQ(run[0].at("weight"), 0.75);
  // The run reads 96 sequences (12 steps of 8 sequences), so a share is exact up to 1 / 96.
  EXPECT_NEAR(run[1].at("share").get<double>(), 0.25, 1.0 / 96);
  EXPECT_GT(run[0].at("epochs").get<double>(), 0);
  const auto line = log_without_times(scratch / "run").back();
  EXPECT_NEAR(line.at("data/share/corpus").get<double>(), 0.75, 1.0 / 96);
  EXPECT_EQ(line.at("data/epochs/corpus-2").get<double>(), run[1].at("epochs").get<double>());

  // A run that is stopped at step 8 and resumed has the same losses.
  fs::remove_all(scratch / "run" / "model");
  fs::remove_all(scratch / "run" / "checkpoints" / "step-00000012");
  train(TrainConfig::load(path, settings), true);
  EXPECT_EQ(losses(scratch / "run"), whole);
}

}  // namespace
}  // namespace lazy::train
