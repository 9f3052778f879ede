// Tests every mixer through the command line: training, resuming, evaluation, generation and rejected options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/file.h"
#include "support/error_of.h"
#include "tiny_run.h"

namespace lazy::train {
namespace {

std::filesystem::path write_mixer_config(const std::filesystem::path& folder, const std::string& kind) {
  const std::filesystem::path path = folder / "mixer.toml";
  const bool attends = kind == "titans_mac" || kind == "titans_mag" || kind == "titans_mal";
  std::string shape = "kind = \"" + kind + "\"\nhidden_size = 32\nnum_hidden_layers = 2\n";
  if (kind != "mamba2") shape += "intermediate_size = 48\n";
  if (attends) shape += "num_heads = 2\n";
  std::string text = read_file(write_tiny_config(folder));
  text.replace(0, text.find("[data]"), "[model]\n" + shape + "tie_word_embeddings = true\n[mixer]\nheads = 2\n");
  std::ofstream(path) << text;
  return path;
}

class Mixers : public ::testing::TestWithParam<const char*> {};

TEST_P(Mixers, Mixer_TrainsResumesEvaluatesAndGenerates) {
  const ScratchFolder straight, parted;
  const auto config = write_mixer_config(straight.path(), GetParam()).string();
  // The test uses one thread, because with several threads the small matrix products of Titans MAC may round
  // differently between runs.
  const std::vector<std::string> fewer = {"--set", "training.steps=12", "--set", "checkpoint.every=6", "--threads",
                                          "1"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), fewer.begin(), fewer.end());
    return arguments;
  };
  const Ended all = run_lazy(with({config}), straight.path());
  ASSERT_EQ(all.exit_code, 0) << all.errors;
  const std::vector<double> curve = losses(straight.path() / "run");
  ASSERT_EQ(curve.size(), 12u);
  EXPECT_LT(curve.back(), curve.front() - 0.1) << "it learns";

  // A run that is stopped after the first checkpoint and resumed has the same losses and weights.
  const auto other = write_mixer_config(parted.path(), GetParam()).string();
  Child child(with({other}), parted.path());
  ASSERT_TRUE(child.wait_for_step(parted.path() / "run", 7));
  child.send(SIGTERM);
  child.wait();
  const Ended resumed = run_lazy(with({other, "--resume"}), parted.path());
  ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_EQ(losses(parted.path() / "run"), curve);
  EXPECT_TRUE(
      same_files(straight.path() / "run/model", parted.path() / "run/model", {"model.safetensors", "config.json"}));

  const std::string model = (straight.path() / "run/model").string();
  const std::filesystem::path text = straight.path() / "text.txt";
  std::ofstream(text) << "the cat sat on the mat and the dog sat on the log, and so on for a while";
  const Ended evaluated = run_lazy({model, "--text", text.string()}, straight.path(), 0, "eval");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.errors;
  const Ended said =
      run_lazy({model, "--prompt", "the", "--max-tokens", "8", "--seed", "1"}, straight.path(), 0, "generate");
  EXPECT_EQ(said.exit_code, 0) << said.errors;
  const Ended again =
      run_lazy({model, "--prompt", "the", "--max-tokens", "8", "--seed", "1"}, straight.path(), 0, "generate");
  EXPECT_EQ(said.output, again.output);

  const Ended sinks = run_lazy({model, "--text", text.string()}, straight.path(), 0, "sinks");
  EXPECT_EQ(sinks.exit_code, 2);
  // the error names the first layer
  EXPECT_THAT(last_line(sinks.errors), Names({"sinks", std::string(GetParam()), 0}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mixers,
                         ::testing::Values("retnet", "mamba2", "delta_net", "gated_delta_net", "ttt_linear", "ttt_mlp",
                                           "titans_lmm", "titans_mac", "titans_mag", "titans_mal"),
                         [](const auto& info) { return info.param; });

TEST(Mixers, AttentionKeysWithoutAttention_AreRejected) {
  const ScratchFolder scratch;
  const auto config = write_mixer_config(scratch.path(), "retnet").string();
  const auto refused = [&](const std::string& of, const std::vector<std::pair<std::string, NamesMatcher>>& settings) {
    for (const auto& [setting, expected] : settings) {
      const Ended ended = run_lazy({of, "--set", setting, "--dry-run"}, scratch.path());
      EXPECT_EQ(ended.exit_code, 2) << setting << ended.output;
      EXPECT_THAT(ended.errors, expected) << setting;
    }
  };
  refused(config, {{"model.window_size=16", Names({"window_size", "retnet", "attention_layers"})},
                   {"model.num_heads=4", Names({"num_heads", "retnet", "attention_layers"})},
                   {"model.rope_theta=5000", Names({"rope_theta", "retnet", "attention_layers"})},
                   {"mixer.chunk=128", Names({"mixer.chunk", 1, "max_position_embeddings", 64, 128})},
                   {"mixer.heads=5", Names({"mixer.heads", 32, 5})},
                   {"mixer.head=2", Names({"'head'", "[mixer]", "'heads'"})},
                   {"mixer.memory_depth=3", Names({"mixer.memory_depth", "retnet", "titans_lmm", "titans_mac"})},
                   {"mixer.state_size=64", Names({"mixer.state_size", "retnet", "mamba2"})},
                   {"mixer.conv_size=4", Names({"mixer.conv_size", 0, "retnet", 4})},
                   {"mixer.key_dim=7", Names({"mixer.key_dim", 7})},
                   {"model.positions=\"alibi\"", Names({"positions", "retnet", "attention_layers"})},
                   {"model.segment_length=16", Names({"segment_length", "retnet", "attention_layers"})},
                   {"model.attention_every=3", Names({"model.attention_every", 0, 2, 3})},
                   {"model.attention_layers=[0,1]", Names({"attention_layers", "retnet", 2})}});
  refused(write_tiny_config(scratch.path(), "transformer").string(),
          {{"mixer.heads=4", Names({"mixer.heads", "transformer", "num_heads", "head_dim", "[model]", "retnet"})},
           {"mixer.memory_depth=4", Names({"mixer.memory_depth", "transformer", "titans_lmm"})},
           {"mixer.head=4", Names({"'head'", "[mixer]"})},
           {"model.attention_every=4", Names({"attention_every", "transformer", "retnet"})}});
  const auto mamba = write_mixer_config(scratch.path(), "mamba2").string();
  refused(mamba, {{"model.intermediate_size=64", Names({"intermediate_size", 0, "mamba2"})}});
  const auto ttt = write_mixer_config(scratch.path(), "ttt_linear").string();
  const Ended turned = run_lazy({ttt, "--set", "model.rope_theta=5000", "--set", "training.steps=5", "--set",
                                 "training.output=" + (scratch.path() / "ttt").string()},
                                scratch.path());
  EXPECT_EQ(turned.exit_code, 0) << turned.errors;
  EXPECT_EQ(ModelConfig::from_directory(scratch.path() / "ttt/model").positions.rope_base, 5000);
  write_mixer_config(scratch.path(), "retnet");
  const Ended hybrid = run_lazy(
      {config, "--set", "model.attention_every=2", "--set", "model.window_size=16", "--set", "training.steps=5"},
      scratch.path());
  EXPECT_EQ(hybrid.exit_code, 0) << hybrid.errors;
  EXPECT_THAT(read_file(scratch.path() / "run/model/config.json"), Names({"\"attn\""}));
}

TEST(Mixers, Benchmark_ReportsStateSize) {
  const ScratchFolder scratch;
  const std::string json = (scratch.path() / "mixers.json").string();
  const std::vector<std::string> little = {"mixers",   "--device", "cpu",     "--dtype", "fp32",   "--layers", "1",
                                           "--tokens", "32",       "--steps", "1",       "--json", json};
  const auto run = [&](const char* model, const char* lengths) {
    auto arguments = little;
    arguments.insert(arguments.end(), {"--model", model, "--length", lengths});
    return run_lazy(arguments, scratch.path(), 0, "bench");
  };
  const Ended ended = run("retnet", "32,64");
  ASSERT_EQ(ended.exit_code, 0) << ended.errors;
  const auto rows = nlohmann::json::parse(read_file(json)).at("rows");
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    EXPECT_GT(row.at("train_tokens_per_second").get<double>(), 0);
    EXPECT_GT(row.at("decode_ms_per_token").get<double>(), 0);
    // Size of the state in fp32. RetNet: 4 heads of 256 x 512 values and the position (8 bytes), for any sequence
    // length. Attention: keys and values of 16 heads of size 64 for every token.
    const int64_t kept =
        row.at("model") == "retnet" ? 4 * 256 * 512 * 4 + 8 : row.at("length").get<int64_t>() * 2 * 16 * 64 * 4;
    EXPECT_EQ(row.at("state_bytes"), kept) << row.dump();
  }
  const Ended unknown = run("retnett", "32");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.errors, Names({"--model", "deltanet", "retnet", "retnett"}));
}

}  // namespace
}  // namespace lazy::train
