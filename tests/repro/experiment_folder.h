// A temporary folder for tests of experiments: a small GPT-2 with random weights, the `bytes` tokenizer and a text.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "data/tokenizer.h"
#include "repro/experiments/toys.h"
#include "repro/report.h"
#include "repro/runner.h"
#include "support/small_gpt2.h"

namespace lazy::repro {

class ExperimentFolder {
 public:
  ExperimentFolder() {
    std::filesystem::create_directories(path / "model");
    const auto tokenizer = load_tokenizer("bytes");
    LanguageModel gpt2 = small_gpt2(3, 72, tokenizer->vocab_size());
    gpt2.save(model());
    tokenizer->save(model());
    std::ofstream file(text());
    for (int i = 0; i < 400; ++i)
      file << "Line " << i * 37 % 101 << " tells of a fox, a dog and " << i << " lazy afternoons.\n";
  }
  ~ExperimentFolder() { std::filesystem::remove_all(path); }
  ExperimentFolder(const ExperimentFolder&) = delete;
  ExperimentFolder& operator=(const ExperimentFolder&) = delete;

  std::filesystem::path model() const { return path / "model"; }
  std::filesystem::path text() const { return path / "text.txt"; }
  ExperimentInputs experiment(const char* name, const Json& more = Json::object()) const {
    Json settings{{"study", name}, {"model", model().string()}, {"text", {text().string()}}};
    settings.update(more);
    return {settings, "cpu", false};
  }
  RunOptions options() const {
    RunOptions options;
    options.conditions = {find_scale("tiny"), {}, {}, {}, 1, "cpu", {{"model", model()}}, {text().string()}};
    options.output = path / "out";
    options.progress = false;
    return options;
  }

  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) /
      ("study_" + std::to_string(::getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
};

}  // namespace lazy::repro
