// `lazy bench`: benchmarks that compare the speed of this program with a reference implementation in the same process.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "benchmarks/benchmarks.h"
#include "command.h"
#include "core/config.h"
#include "core/config_files.h"
#include "core/file.h"

namespace lazy::cli {

template <typename Benchmark>
struct Settings {
  Benchmark benchmark;
  std::string json;
};

static void add_json(CLI::App& command, std::string& json) {
  command.add_option("--json", json, "Also write the results to this JSON file");
}

static void write_json(const nlohmann::json& result, const std::string& path) {
  if (!path.empty()) write_file_atomic(path, result.dump(2) + "\n");
}

// Adds the options that the attention benchmarks have in common.
template <typename Benchmark>
static void add_shapes(CLI::App& command, Settings<Benchmark>& s) {
  Benchmark& b = s.benchmark;
  command.add_option("--device", b.device, "Device")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--heads", b.heads, "Query heads")->check(kPositive)->capture_default_str();
  command.add_option("--batch", b.batch, "Batch size")->check(kPositive)->capture_default_str();
  command.add_option("--head-dim", b.head_dims, "Head sizes")->check(CLI::Range(1, 256))->capture_default_str();
  command.add_option("--dtype", b.dtypes, "fp32, bf16")->check(one_of({"fp32", "bf16"}))->capture_default_str();
  command
      .add_option("--score-scale", b.score_scale,
                  "Standard deviation of the attention scores; with a larger value, fewer weights are above zero")
      ->check(kPositive)
      ->capture_default_str();
  command.add_option("--repeats", b.repeats, "Repetitions; the median is reported")
      ->check(kPositive)
      ->capture_default_str();
  add_json(command, s.json);
}

static void bench_attention(CLI::App& command) {
  auto s = std::make_shared<Settings<benchmarks::AttentionBenchmark>>();
  add_shapes(command, *s);
  command.add_option("--length", s->benchmark.length, "Tokens")->check(kPositive)->capture_default_str();
  command.callback([s, &command] {
    auto& b = s->benchmark;
    if (b.device == "cpu") return write_json(benchmarks::run_attention(b), s->json);
    // Use a larger default problem size on a GPU than on a CPU.
    if (!command.count("--heads")) b.heads = 16;
    if (!command.count("--dtype")) b.dtypes = {"bf16"};
    if (command.count("--batch") || command.count("--length")) return write_json(benchmarks::run_attention(b), s->json);
    nlohmann::json all;
    for (const auto& [batch, length] : {std::pair{8, 4096}, std::pair{2, 16384}}) {
      b.batch = batch;
      b.length = length;
      all.push_back(benchmarks::run_attention(b));
      fmt::print("\n");
    }
    write_json(all, s->json);
  });
}

static void bench_decode(CLI::App& command) {
  auto s = std::make_shared<Settings<benchmarks::DecodeBenchmark>>();
  add_shapes(command, *s);
  command.add_option("--keys", s->benchmark.keys, "Cached keys per sequence")->check(kPositive)->capture_default_str();
  command.add_option("--kv-heads", s->benchmark.kv_heads, "Key/value heads")->check(kPositive)->capture_default_str();
  command.callback([s, &command] {
    auto& b = s->benchmark;
    if (b.device == "cpu") return write_json(benchmarks::run_decode(b), s->json);
    if (!command.count("--dtype")) b.dtypes = {"bf16"};
    if (!command.count("--batch")) b.batch = 16;
    if (!command.count("--heads")) b.heads = 16;
    if (command.count("--kv-heads")) return write_json(benchmarks::run_decode(b), s->json);
    nlohmann::json all;
    for (const int64_t kv_heads : {b.heads, std::max<int64_t>(1, b.heads / 4)}) {
      b.kv_heads = kv_heads;
      all.push_back(benchmarks::run_decode(b));
    }
    write_json(all, s->json);
  });
}

static void bench_fused(CLI::App& command) {
  auto s = std::make_shared<Settings<benchmarks::FusedBenchmark>>();
  benchmarks::FusedBenchmark& b = s->benchmark;
  command.add_option("--device", b.device, "Device")->check(one_of({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--rows", b.rows, "Number of rows of the input; 0: 32768 on a GPU, 4096 on the CPU")
      ->check(kNonNegative)
      ->capture_default_str();
  command.add_option("--dim", b.dims, "Values per row")->check(kPositive)->capture_default_str();
  command.add_option("--dtype", b.dtypes, "fp32, bf16, fp16 (on a GPU)")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command.add_option("--repeats", b.repeats, "Repetitions; the median is reported")
      ->check(kPositive)
      ->capture_default_str();
  add_json(command, s->json);
  command.callback([s] { write_json(benchmarks::run_fused(s->benchmark), s->json); });
}

// The options that the benchmarks of whole models have in common.
template <typename Benchmark>
struct ModelSettings : Settings<Benchmark> {
  std::string config;
  std::vector<std::string> overrides;

  void add(CLI::App& command) {
    command.add_option("config", config, "Configuration: FILE.toml, FILE.toml+VARIANT or MODEL[+RECIPE]")->required();
    add_repeated_option(command, "--set", overrides, "Override a key: model.key=value (may be repeated)");
    Benchmark& b = this->benchmark;
    command.add_option("--device", b.device, "Device")->check(one_of({"auto", "cpu", "cuda"}))->capture_default_str();
    command.add_option("--dtype", b.dtype, "Precision")->check(one_of({"auto", "fp32", "bf16"}))->capture_default_str();
    add_json(command, this->json);
  }

  Benchmark& read() {
    const std::string composed = resolve_config(config);
    Config file = Config::load(composed, overrides);
    Benchmark& b = this->benchmark;
    b.model = ModelConfig::from_toml(file);
    if (b.model.vocab_size == 0) b.model.vocab_size = 32000;
    b.name = config_name(composed);
    return b;
  }
};

static void bench_train(CLI::App& command) {
  auto s = std::make_shared<ModelSettings<benchmarks::TrainBenchmark>>();
  s->add(command);
  benchmarks::TrainBenchmark& b = s->benchmark;
  command.add_option("--batch", b.batch, "Sequences per micro-batch")->check(kPositive)->capture_default_str();
  command.add_option("--length", b.length, "Tokens per sequence")->check(kPositive)->capture_default_str();
  command.add_option("--accumulation", b.accumulation, "Micro-batches per step")
      ->check(kPositive)
      ->capture_default_str();
  command.add_option("--steps", b.steps, "Number of timed steps")->check(kPositive)->capture_default_str();
  command.add_flag("--fp8", b.fp8, "Compute linear layers in fp8, like training.precision = \"fp8\"");
  command
      .add_option("--checkpointing", b.checkpointing,
                  "Activation checkpointing: the part that the backward pass recomputes")
      ->check(one_of({"none", "mlp", "attention", "full"}))
      ->capture_default_str();
  command.add_option("--corpus", b.corpus, "Corpus of `lazy data prepare` (default: random tokens on the device)");
  command
      .add_option("--data-parallel", b.data_parallel, "Kind of data parallelism if a launcher started several ranks")
      ->check(one_of({"replicate", "zero2", "full_shard"}))
      ->capture_default_str();
  command.add_flag("--profile", b.profile, "Also report the ten most expensive kernels");
  command.callback([s] {
    const nlohmann::json result = benchmarks::run_train(s->read());
    if (!result.is_null()) write_json(result, s->json);  // run_train() returns null on every rank except rank 0
  });
}

static void bench_eval(CLI::App& command) {
  auto s = std::make_shared<ModelSettings<benchmarks::EvalBenchmark>>();
  s->add(command);
  benchmarks::EvalBenchmark& b = s->benchmark;
  command.add_option("--questions", b.questions, "Questions")->check(kPositive)->capture_default_str();
  command.add_option("--choices", b.choices, "Choices per question")->check(kPositive)->capture_default_str();
  command.add_option("--context", b.context, "Average number of tokens per question")
      ->check(kPositive)
      ->capture_default_str();
  command.add_option("--choice", b.choice, "Average number of tokens per choice")
      ->check(kPositive)
      ->capture_default_str();
  command.add_option("--batch", b.batch, "Rows per batch of the padded baseline")
      ->check(kPositive)
      ->capture_default_str();
  command.add_option("--repeats", b.repeats, "Repetitions; the median is reported")
      ->check(kPositive)
      ->capture_default_str();
  command.callback([s] { write_json(benchmarks::run_eval(s->read()), s->json); });
}

static void bench_sinks(CLI::App& command) {
  auto s = std::make_shared<ModelSettings<benchmarks::SinksBenchmark>>();
  s->add(command);
  benchmarks::SinksBenchmark& b = s->benchmark;
  command.add_option("--length", b.length, "Number of tokens in the text; 0: 32768 on a GPU, 2048 on the CPU")
      ->check(kNonNegative)
      ->capture_default_str();
  command
      .add_option("--check", b.checked,
                  "Number of tokens for which the statistics are checked against full attention matrices")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command.add_option("--repeats", b.repeats, "Repetitions; the median is reported")
      ->check(kPositive)
      ->capture_default_str();
  command.callback([s] { write_json(benchmarks::run_sinks(s->read()), s->json); });
}

static void bench_mixers(CLI::App& command) {
  auto s = std::make_shared<Settings<benchmarks::MixersBenchmark>>();
  benchmarks::MixersBenchmark& b = s->benchmark;
  command.add_option("--device", b.device, "Device")->check(one_of({"auto", "cpu", "cuda"}))->capture_default_str();
  command.add_option("--dtype", b.dtype, "Precision")->check(one_of({"auto", "fp32", "bf16"}))->capture_default_str();
  command
      .add_option("--model", b.models,
                  "Models to compare with the transformer: retnet, mamba2, deltanet, ... (default: all)")
      ->delimiter(',');
  command.add_option("--length", b.lengths, "Tokens per text (default: 1024; on a GPU 1024,4096,16384,65536)")
      ->delimiter(',')
      ->check(kPositive);
  command
      .add_option("--layers", b.layers, "Number of layers; 0 (default): 2 on a CPU, all layers of the model on a GPU")
      ->check(kNonNegative)
      ->capture_default_str();
  command.add_option("--tokens", b.tokens, "Tokens per training step; 0: 2048 on the CPU, 32768 on a GPU")
      ->check(kNonNegative)
      ->capture_default_str();
  command.add_option("--steps", b.steps, "Repetitions; the median is reported")
      ->check(kPositive)
      ->capture_default_str();
  add_json(command, s->json);
  command.callback([s] {
    s->benchmark.after_model = [s](const nlohmann::json& so_far) { write_json(so_far, s->json); };
    write_json(benchmarks::run_mixers(s->benchmark), s->json);
  });
}

static void bench_tokenizer(CLI::App& command) {
  auto s = std::make_shared<Settings<benchmarks::TokenizerBenchmark>>();
  command.add_option("--tokenizer", s->benchmark.tokenizer, "tokenizer.json, a .model file, or a folder with one")
      ->required();
  command.add_option("--text", s->benchmark.text, "Text file; each line is a document")
      ->required()
      ->check(CLI::ExistingFile);
  command
      .add_option("--python", s->benchmark.python,
                  "Python interpreter that has the reference package: tokenizers or sentencepiece")
      ->capture_default_str();
  command.add_option("--repeats", s->benchmark.repeats, "Repetitions; the fastest is reported")
      ->check(kPositive)
      ->capture_default_str();
  add_json(command, s->json);
  command.callback([s] { write_json(benchmarks::run_tokenizer(s->benchmark), s->json); });
}

}  // namespace lazy::cli

LAZY_COMMAND(bench, "Compare speed with a reference, after checking the results", [](CLI::App& command) {
  command.require_subcommand(1);
  command.footer(
      "Example:\n  lazy bench attention --device cpu --json attention.json\n  lazy --threads 1 bench attention "
      "--length 1024\n  lazy bench decode --keys 32768\n  lazy bench attention --device cuda\n  lazy bench train "
      "lazy-340m+15b --profile\n  lazy bench eval configs/sink-55m.toml+lazy\n  lazy bench mixers "
      "--length 1024,4096\n  lazy bench sinks lazy-340m --length 32768\n"
      "  lazy bench tokenizer --tokenizer gpt2/tokenizer.json --text book.txt --python .venv/bin/python");
  lazy::cli::bench_attention(
      *command.add_subcommand("attention", "Speed of lazy::attention compared with PyTorch's softmax SDPA"));
  lazy::cli::bench_decode(
      *command.add_subcommand("decode", "Speed of lazy::decode compared with PyTorch's softmax SDPA"));
  lazy::cli::bench_fused(
      *command.add_subcommand("fused", "Speed of RMSNorm, RoPE and SwiGLU compared with a memory copy"));
  lazy::cli::bench_train(
      *command.add_subcommand("train", "Speed of complete training steps of the model of a configuration"));
  lazy::cli::bench_eval(
      *command.add_subcommand("eval", "Speed of scoring benchmark questions, compared with padded batches"));
  lazy::cli::bench_mixers(*command.add_subcommand(
      "mixers", "Speed of RetNet, Mamba2, DeltaNet, TTT and Titans compared with attention, by length"));
  lazy::cli::bench_sinks(*command.add_subcommand(
      "sinks", "Speed of the sink statistics of one long text, compared with a plain forward pass"));
  lazy::cli::bench_tokenizer(*command.add_subcommand(
      "tokenizer", "Speed of encoding on one thread, compared with tokenizers or sentencepiece"));
});
