// A test fixture with a corpus and two models, "softmax" and "lazy". The models have RoPE and random weights.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "data/tokenizer.h"
#include "measure/kinds.h"
#include "support/tiny_corpus.h"

namespace lazy::measure {

inline constexpr int64_t kContext = 24;

// Runs a kind of measurement with its default settings, except for the settings in `more`.
inline Json measured(const char* kind, const Json& more) {
  Json settings = find_kind(kind).defaults;
  settings.update(more);
  settings["study"] = kind;
  return find_kind(kind).run({settings, "cpu", false});
}

class MeasuredModels : public testing::Test {
 protected:
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      ("measured_" + std::to_string(::getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
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

  // Returns the settings that select a model and the corpus.
  Json inputs(const char* model) const {
    return {{"model", (folder_ / model).string()}, {"corpus", (folder_ / "corpus").string()}};
  }
  Json experiment(const char* kind, const char* model, Json settings) const {
    settings.update(inputs(model));
    return measured(kind, settings);
  }
  ModelAndTexts subject(const char* model, int64_t texts, int64_t length) const {
    return model_and_texts({inputs(model), "cpu", false}, texts, length);
  }
};

}  // namespace lazy::measure
