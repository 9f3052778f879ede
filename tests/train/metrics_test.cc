#include "train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/text.h"
#include "scratch.h"

namespace lazy::train {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> lines(const std::filesystem::path& run) {
  std::vector<Json> out;
  for (const auto& line : split(read_file(run / "log.jsonl"), '\n')) {
    if (!line.empty()) out.push_back(Json::parse(line));
  }
  return out;
}

TEST(MetricsLog, Write_AddsOneJsonObjectPerLine) {
  const ScratchFolder run;
  MetricsLog log(run.path(), 0, false);
  log.write(10, 20480, 1.5, {{"loss_metrics/global_avg_loss", 0.1}, {"lr", 3e-4}});
  log.write(20, 40960, 2.5, {{"loss_metrics/global_avg_loss", std::nan("")}});
  EXPECT_EQ(read_file(run / "log.jsonl"),
            "{\"step\":10,\"tokens\":20480,\"time\":1.5,\"loss_metrics/global_avg_loss\":0.1,\"lr\":0.0003}\n"
            "{\"step\":20,\"tokens\":40960,\"time\":2.5,\"loss_metrics/global_avg_loss\":null}\n");
  EXPECT_FALSE(std::filesystem::exists(run / "tensorboard"));
}

TEST(MetricsLog, Doubles_RoundTripThroughText) {
  const ScratchFolder run;
  const double loss = 8.0 / 3.0 + 1e-13;
  MetricsLog(run.path(), 0, false).write(1, 1, 0, {{"loss", loss}});
  EXPECT_EQ(lines(run.path()).at(0)["loss"].get<double>(), loss);
}

TEST(MetricsLog, Resume_DropsLinesAfterCheckpoint) {
  const ScratchFolder run;
  {
    MetricsLog log(run.path(), 0, true);
    for (int step = 1; step <= 5; ++step) log.write(step, step, step, {{"loss", 1.0 / step}});
  }
  {
    MetricsLog log(run.path(), 3, true);
    log.write(4, 4, 4, {{"loss", 7}});
  }
  const auto read = lines(run.path());
  ASSERT_EQ(read.size(), 4u);
  EXPECT_EQ(read[2]["step"], 3);
  EXPECT_EQ(read[3]["loss"], 7);
  int files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(run / "tensorboard")) ++files;
  EXPECT_EQ(files, 2);
}

TEST(MetricsLog, IncompleteLine_IsDropped) {
  EXPECT_EQ(log_up_to("{\"step\":1}\n{\"step\":2", 9), "{\"step\":1}\n");
  EXPECT_EQ(log_up_to("{\"step\":1}\n{\"ste\n{\"step\":3}\n", 9), "{\"step\":1}\n");
  EXPECT_EQ(log_up_to("{\"step\":1}\n{\"step\":2}\n", 1), "{\"step\":1}\n");
  EXPECT_EQ(log_up_to("", 1), "");
  EXPECT_EQ(log_up_to("not json\n", 1), "");
}

}  // namespace
}  // namespace lazy::train
