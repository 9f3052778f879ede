#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/error_of.h"
#include "support/run_command.h"

namespace lazy {
namespace {
namespace fs = std::filesystem;

// The command succeeds only if its statistics match: `lazy bench sinks` fails without reporting times if they differ
// from the statistics of full attention matrices.
TEST(SinksBenchmark, Statistics_MatchFullMatrices) {
  const fs::path json = fs::path(testing::TempDir()) / ("bench_sinks_" + std::to_string(::getpid()) + ".json");
  for (const char* model : {"--set model.kind=lazy --set model.num_heads=4",
                            "--set model.kind=transformer --set model.num_heads=4 --set model.num_kv_heads=2",
                            "--set model.kind=gpt2 --set model.num_heads=4"}) {
    const auto [code, printed] = run_command(
        std::string(LAZY_BINARY " bench sinks ") + LAZY_SOURCE_DIR + "/configs/repro-tiny.toml " + model +
        " --set model.vocab_size=300 --device cpu --dtype fp32 --length 128 --check 70 --repeats 1 --json " +
        json.string());
    ASSERT_EQ(code, 0) << printed;
    EXPECT_THAT(printed, Names({128, 70}));
    const nlohmann::json figures = nlohmann::json::parse(read_file(json));
    EXPECT_EQ(figures.at("length"), 128);
    EXPECT_GT(figures.at("plain_ms").get<double>(), 0);
    EXPECT_NEAR(figures.at("time_ratio").get<double>(),
                figures.at("measured_ms").get<double>() / figures.at("plain_ms").get<double>(), 1e-9);
    EXPECT_EQ(figures.at("alive_fraction").get<double>() < 1, std::string(model).find("lazy") != std::string::npos);
  }
  fs::remove(json);
  const auto [code, printed] = run_command(std::string(LAZY_BINARY " bench sinks ") + LAZY_SOURCE_DIR +
                                           "/configs/models/retnet-340m.toml --device cpu");
  EXPECT_EQ(code, 2);
  EXPECT_THAT(printed, Names({"sinks", "retnet", 0}));
}

}  // namespace
}  // namespace lazy
