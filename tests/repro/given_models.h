// A corpus and two models with RoPE and random weights, "softmax" and "lazy", for tests of recipes whose models are
// given instead of trained.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"
#include "repro/experiments/toys.h"
#include "repro/runner.h"
#include "support/tiny_corpus.h"

namespace lazy::repro {

inline constexpr int64_t kContext = 24;

class GivenModels : public testing::Test {
 protected:
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("given_" + std::to_string(::getpid()));
  void SetUp() override {
    write_tiny_corpus(folder_);
    const auto tokenizer = load_tokenizer("bytes");
    for (const char* name : {"softmax", "lazy"}) {
      ModelConfig c;
      c.vocab_size = tokenizer->vocab_size();
      c.hidden_size = 32;
      c.num_layers = 2;
      c.attention.num_heads = c.attention.num_kv_heads = 4;
      c.attention.head_dim = 8;
      c.mlp.intermediate_size = 48;
      c.max_length = kContext;
      c.init_std = 0.2;
      if (name == std::string("lazy"))
        c.attention.normalizer = Normalizer::elastic, c.attention.distance_bias_window = 8;
      LanguageModel model(c, 5);
      std::filesystem::create_directories(folder_ / name);
      model.save(folder_ / name);
      tokenizer->save(folder_ / name);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  RunOptions options(std::vector<std::pair<std::string, std::filesystem::path>> models) const {
    RunOptions o;
    o.conditions = {find_scale("tiny"), folder_ / "corpus", {}, {}, 1, "cpu", std::move(models)};
    o.output = folder_ / "out";
    o.progress = false;
    return o;
  }
  // Runs an experiment as a recipe does on a trained model.
  Json experiment(const char* name, const char* model, Json settings) const {
    settings.update(
        {{"study", name}, {"model", (folder_ / model).string()}, {"corpus", (folder_ / "corpus").string()}});
    return run_recipe_experiment({settings, "cpu", false});
  }
};

}  // namespace lazy::repro
