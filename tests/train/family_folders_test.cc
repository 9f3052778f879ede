// Tests training that starts from a converted folder of each family. With every sharding mode, several ranks read the
// folder and must compute the same loss as a single rank.
#include <gtest/gtest.h>

#include <fstream>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "ranks.h"
#include "tiny_run.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// Writes a small softmax model of the family with random weights and the `bytes` tokenizer.
void write_family_folder(const fs::path& folder, const std::string& family) {
  const auto tokenizer = load_tokenizer("bytes");
  json config{{"model_type", family},       {"vocab_size", tokenizer->vocab_size()},
              {"hidden_size", 32},          {"num_hidden_layers", 4},
              {"num_attention_heads", 4},   {"num_key_value_heads", 2},
              {"intermediate_size", 48},    {"max_position_embeddings", 64},
              {"rms_norm_eps", 1e-5},       {"rope_theta", 1e4},
              {"tie_word_embeddings", true}};
  if (family == "mistral") config["sliding_window"] = 16;
  if (family == "qwen3") config["head_dim"] = 12;
  if (family == "gemma2" || family == "gemma3_text") {
    config.update({{"head_dim", 12}, {"query_pre_attn_scalar", 12}, {"sliding_window", 16}});
    config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  }
  if (family == "gpt_oss")
    config.update({{"head_dim", 8}, {"num_local_experts", 2}, {"num_experts_per_tok", 1}, {"sliding_window", 16}});
  if (family == "granite_swa") config["sliding_window"] = 16;
  if (family == "gemma2") config.update({{"attn_logit_softcapping", 5.0}, {"final_logit_softcapping", 3.0}});
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  ModelConfig c = ModelConfig::from_directory(folder);
  c.init_std = 0.1;
  c.tokenizer_fingerprint = tokenizer->fingerprint();
  LanguageModel(c, 5).save(folder);
  tokenizer->save(folder);
}

class FamilyFolder : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyFolder, EverySharding_HasFirstLossOfOneRank) {
  const ScratchFolder source;
  write_family_folder(source / "softmax", GetParam());
  const Ended converted = run_lazy(
      {(source / "softmax").string(), "--to", "lazy", "--window", "16", "--output", (source / "lazy").string()},
      source.path(), 0, "convert");
  ASSERT_EQ(converted.exit_code, 0) << converted.errors;
  const auto train = [&](const ScratchFolder& scratch, int ranks, const std::string& sharding) {
    const fs::path path = write_tiny_config(scratch.path());
    std::ifstream file(path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    text.erase(0, text.find("[data]"));
    std::ofstream(scratch / "tune.toml") << "[model]\nfrom = \"" << (source / "lazy").string() << "\"\n" << text;
    const std::vector<std::string> arguments{(scratch / "tune.toml").string(),
                                             "--threads",
                                             "1",
                                             "--set",
                                             "training.dtype=fp32",
                                             "--set",
                                             "training.steps=3",
                                             "--set",
                                             "lr_scheduler.warmup_steps=1",
                                             "--set",
                                             "training.max_norm=0",
                                             "--set",
                                             "training.data_parallel=" + sharding,
                                             "--set",
                                             "training.gradient_accumulation_steps=" + std::to_string(2 / ranks)};
    const auto all = ranks == 1 ? std::vector<Ended>{run_lazy(arguments, scratch.path())}
                                : run_ranks(ranks, arguments, scratch.path());
    for (const Ended& ended : all) EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    return losses(scratch / "run");
  };
  const ScratchFolder one, zero2, full_shard;
  const std::vector<double> expected = train(one, 1, "replicate"), second = train(zero2, 2, "zero2"),
                            third = train(full_shard, 2, "full_shard");
  ASSERT_EQ(expected.size(), 3u);
  ASSERT_EQ(second.size(), 3u);
  EXPECT_NEAR(second[0], expected[0], 1e-5);
  EXPECT_NEAR(third[0], expected[0], 1e-5);
  EXPECT_EQ(third, second);
  EXPECT_NE(expected[2], expected[0]);  // training changes the loss
  EXPECT_TRUE(same_files(zero2 / "run/model", full_shard / "run/model", {"model.safetensors", "config.json"}));
}

INSTANTIATE_TEST_SUITE_P(All, FamilyFolder, ::testing::ValuesIn(convertible_families()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lazy::train
