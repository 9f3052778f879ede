// Tests `lazy eval` in one process and in several processes that share the work.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../train/ranks.h"
#include "data/tokenizer.h"
#include "folder.h"
#include "model/config.h"
#include "model/language_model.h"
#include "small_model.h"
#include "support/error_of.h"

namespace lazy::eval {
namespace {

// Writes a model, its tokenizer and two benchmarks.
void write_inputs(const Folder& folder) {
  ModelConfig config = small_config();
  config.init_std = 0.1;
  std::filesystem::create_directories(folder.path / "model");
  LanguageModel(config, 3).save(folder.path / "model");
  load_tokenizer("bytes")->save(folder.path / "model");
  std::string piqa, lambada;
  for (int i = 0; i < 13; ++i) {
    piqa +=
        fmt::format("{{\"goal\": \"count to {}\", \"sol1\": \"{}\", \"sol2\": \"start at one{}\", \"label\": {}}}\n", i,
                    i * i, std::string(static_cast<size_t>(i), '!'), i % 2);
    lambada += fmt::format("{{\"text\": \"there were {} birds on the {} wire\"}}\n", i,
                           std::string(static_cast<size_t>(3 * i), 'o'));
  }
  folder.write("data/piqa.jsonl", piqa);
  folder.write("data/lambada_openai.jsonl", lambada);
}

nlohmann::json read(const std::filesystem::path& file) { return nlohmann::json::parse(std::ifstream(file)); }

TEST(Launch, Ranks_MatchSingleProcess) {
  const Folder folder;
  write_inputs(folder);
  const auto arguments = [&](const std::string& output) {
    return std::vector<std::string>{folder.path / "model",
                                    "--tasks",
                                    "piqa,lambada_openai",
                                    "--data",
                                    folder.path / "data",
                                    "--device",
                                    "cpu",
                                    "--output",
                                    folder.path / output,
                                    "--log-samples"};
  };
  const train::Ended alone = train::run_lazy(arguments("alone.json"), folder.path, 0, "eval");
  ASSERT_EQ(alone.exit_code, 0) << alone.errors;
  const auto ranks = train::run_ranks(3, arguments("shared.json"), folder.path, "eval");
  for (const train::Ended& rank : ranks) ASSERT_EQ(rank.exit_code, 0) << rank.errors;
  EXPECT_THAT(ranks[0].output, Names({"lambada_openai"}));
  EXPECT_EQ(ranks[1].output + ranks[2].output, "");
  for (const auto& [task, values] : read(folder.path / "alone.json").at("results").items()) {
    for (const auto& [name, value] : values.items()) {
      if (!value.is_number_float()) continue;
      const double found = read(folder.path / "shared.json").at("results").at(task).at(name).get<double>();
      EXPECT_NEAR(found, value.get<double>(), 1e-5 * std::abs(value.get<double>())) << task << ' ' << name;
    }
  }
}

TEST(Launch, ErrorOfOneRank_EndsAllRanks) {
  const Folder folder;
  write_inputs(folder);
  folder.write("data/piqa.jsonl", "{\"goal\": 1}\n");
  const auto ranks =
      train::run_ranks(2, {folder.path / "model", "--tasks", "piqa", "--data", folder.path / "data", "--device", "cpu"},
                       folder.path, "eval");
  for (const train::Ended& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 2);
    EXPECT_THAT(rank.errors, Names({"piqa.jsonl:1", "sol1"}));
  }
}

}  // namespace
}  // namespace lazy::eval
