// Tests `lazy info` and `lazy generate` as command-line programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "generate/model_folder.h"
#include "model/language_model.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TemporaryFolder;

class Commands : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(LAZY_BINARY)) GTEST_SKIP() << LAZY_BINARY << " is not built";
  }
  static std::pair<int, std::string> lazy(const std::string& arguments) {
    return run_command(LAZY_BINARY " --threads 2 " + arguments);
  }

  // Writes a small model with the bytes tokenizer.
  static void make_model(const std::filesystem::path& folder) {
    const auto tokenizer = load_tokenizer("bytes");
    const int64_t vocabulary = tokenizer->vocab_size();
    ModelConfig c{.vocab_size = vocabulary,
                  .hidden_size = 32,
                  .num_layers = 2,
                  .attention = {.num_heads = 2,
                                .num_kv_heads = 2,
                                .head_dim = 16,
                                .normalizer = Normalizer::elastic,
                                .distance_bias_window = 8},
                  .mlp = {.intermediate_size = 48}};
    c.init_std = 0.2;
    c.tokenizer_fingerprint = tokenizer->fingerprint();
    LanguageModel(c, 3).save(folder);
    tokenizer->save(folder);
  }
};

TEST_F(Commands, Info_PrintsParameterCounts) {
  const std::string models = LAZY_SOURCE_DIR "/configs/models/";
  for (const auto& [file, tied, untied] :
       {std::tuple{"transformer-340m", "341.1", "373.9"}, std::tuple{"lazy-340m", "341.3", "374.1"},
        std::tuple{"transformer-760m", "728.7", "777.9"}}) {
    const auto [status, out] = lazy("info " + models + file + ".toml");
    EXPECT_EQ(status, 0);
    EXPECT_THAT(out, Names({std::string(tied), std::string(untied)})) << file;
  }
  const auto [status, out] = lazy("info " + models + "lazy-340m.toml --json --set model.tie_word_embeddings=true");
  ASSERT_EQ(status, 0) << out;
  const json info = json::parse(out);
  EXPECT_EQ(info["parameters"]["total"], info["parameters"]["tied"]);
  int64_t sum = 0;
  for (const auto& tensor : info["tensors"]) sum += tensor["count"].get<int64_t>();
  EXPECT_EQ(info["parameters"]["total"], sum);
}

TEST_F(Commands, Info_PrintsEqualLayersOnce) {
  const std::string models = LAZY_SOURCE_DIR "/configs/models/";
  const auto [status, out] = lazy("info " + models + "mamba2-340m.toml");
  ASSERT_EQ(status, 0) << out;
  EXPECT_THAT(out, Names({"mamba2", 48, 1024, 32, 128, 64, "backbone.layers.*.mixer.in_proj.weight"}));
  EXPECT_THAT(out, Not(Names({"layers.1."})));
  EXPECT_THAT(out, HasSubstr(" x 48"));
  const auto [other, hybrid] = lazy("info " + models + "retnet-340m.toml --set model.attention_every=4");
  ASSERT_EQ(other, 0) << hybrid;
  EXPECT_THAT(hybrid, Names({"attn.g_norm_swish_gate.weight"}));
  EXPECT_THAT(hybrid, HasSubstr(" x 18"));
  EXPECT_THAT(hybrid, HasSubstr(" x 6"));
  const json pure = json::parse(lazy("info " + models + "retnet-340m.toml --json").second);
  EXPECT_EQ(pure["kv_cache_bytes_per_token"]["fp32"], 0);
  const json mixed =
      json::parse(lazy("info " + models + "retnet-340m.toml --json --set model.attention_every=4").second);
  EXPECT_EQ(mixed["kv_cache_bytes_per_token"]["fp32"], 6 * 2 * 4 * 1024);
}

TEST_F(Commands, Info_RejectsConfigurationsThatTrainRejects) {
  const std::string file = LAZY_SOURCE_DIR "/configs/models/lazy-340m.toml";
  for (const auto& [set, part] : {std::pair{"model.num_layer=3", "num_layer"}, std::pair{"optimiser.lr=1", "optimiser"},
                                  std::pair{"optimizer.lr=fast", "optimizer.lr"}}) {
    const auto [status, out] = lazy("info " + file + " --set " + set);
    EXPECT_EQ(status, 2);
    EXPECT_THAT(out, Names({std::string(part)}));
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
  }
}

TEST_F(Commands, InfoWithoutArguments_DescribesTheBuild) {
  const auto [status, out] = lazy("info --json");
  ASSERT_EQ(status, 0) << out;
  const json info = json::parse(out);
  EXPECT_THAT(info["torch"].get<std::string>(), StartsWith("2."));
  EXPECT_EQ(info["threads"], 2);
  EXPECT_EQ(info["devices"][0], "cpu");
  EXPECT_TRUE(info["attention_kernels"]["cpu"]["elastic"].is_array());
  EXPECT_EQ(lazy("info").first, 0);
}

TEST_F(Commands, InfoErrors_AreOneLine) {
  const TemporaryFolder folder;
  testing::write_text(folder / "bad.toml", "[model]\nnum_heads = 7\n");
  for (const std::string& path :
       {(folder / "bad.toml").string(), (folder / "none.toml").string(), folder.path().string()}) {
    const auto [status, out] = lazy("info '" + path + "'");
    EXPECT_EQ(status, 2) << out;
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
    EXPECT_THAT(out, Names({folder.path().string()}));
  }
}

TEST_F(Commands, Generate_IsDeterministicAndWritesJson) {
  const TemporaryFolder folder;
  make_model(folder.path());
  const std::string model = "'" + folder.path().string() + "'", file = (folder / "samples.json").string();
  const std::string arguments = "generate " + model +
                                " --prompt 'Once upon' --prompt 'A' --samples 2 --max-tokens 20 --seed 5 --json '" +
                                file + "'";
  const auto [status, out] = lazy(arguments);
  ASSERT_EQ(status, 0) << out;
  EXPECT_THAT(out, StartsWith("Once upon"));
  const std::string first = testing::read_text(file);
  EXPECT_EQ(lazy(arguments).second, out);
  EXPECT_EQ(testing::read_text(file), first);
  const json samples = json::parse(first);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0]["prompt"], "Once upon");
  EXPECT_EQ(samples[3]["prompt"], "A");
  EXPECT_NE(samples[0]["text"], samples[1]["text"]);
  EXPECT_THAT(out, HasSubstr(samples[0]["text"].get<std::string>()));
  EXPECT_NE(lazy("generate " + model + " --prompt A --max-tokens 20 --seed 6").second,
            lazy("generate " + model + " --prompt A --max-tokens 20 --seed 7").second);
}

TEST_F(Commands, Export_WritesAModelFolderAndDoesNotOverwrite) {
  const TemporaryFolder folder;
  const std::filesystem::path run = folder / "run", out = folder / "out";
  std::filesystem::create_directories(run / "model");
  make_model(run / "model");
  const auto exported = [&](const std::string& arguments) {
    return lazy("export '" + run.string() + "' '" + out.string() + "/' " + arguments);
  };
  const auto [status, text] = exported("--dtype fp32");
  ASSERT_EQ(status, 0) << text;
  EXPECT_EQ(testing::read_text(out / "model.safetensors"), testing::read_text(run / "model" / "model.safetensors"));
  EXPECT_EQ(load_model_folder(out).tokenizer->kind(), "bytes");
  const auto again = exported("");
  EXPECT_EQ(again.first, 2);
  EXPECT_THAT(again.second, Names({out.string()}));
  std::filesystem::remove_all(out);
  std::filesystem::remove_all(run / "model");
  const auto nothing = exported("");
  EXPECT_EQ(nothing.first, 2);
  EXPECT_THAT(nothing.second, Names({run.string(), "model/", "checkpoints/"}));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(Commands, GenerateErrors_AreOneLineWithExitCode2) {
  const TemporaryFolder good, truncated, foreign;
  for (const TemporaryFolder* folder : {&good, &truncated, &foreign}) make_model(folder->path());
  const std::string weights = testing::read_text(truncated / "model.safetensors");
  testing::write_text(truncated / "model.safetensors", weights.substr(0, weights.size() / 2));
  json config = json::parse(testing::read_text(foreign / "config.json"));
  config["tokenizer_fingerprint"] = "0000000000000001";
  testing::write_text(foreign / "config.json", config.dump());
  const auto expect = [](const std::string& arguments, const NamesMatcher& names) {
    const auto [status, out] = lazy("generate " + arguments);
    EXPECT_EQ(status, 2) << out;
    EXPECT_THAT(out, names);
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
  };
  expect("'" + truncated.path().string() + "' --prompt A", Names({(truncated / "model.safetensors").string()}));
  expect("'" + foreign.path().string() + "' --prompt A", Names({foreign.path().string(), "0000000000000001"}));
  expect("/nonexistent/model --prompt A", Names({"/nonexistent/model"}));
  expect("'" + good.path().string() + "' --prompt A --temperature -1", Names({"temperature", -1}));
  expect("'" + good.path().string() + "' --prompt A --top-p 2", Names({"top-p", 1, 2}));
}

}  // namespace
}  // namespace lazy
