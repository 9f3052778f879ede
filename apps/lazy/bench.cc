// `lazy bench`: speed beside a peer in the same process.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "benchmarks/attention.h"
#include "benchmarks/decode.h"
#include "benchmarks/tokenizer.h"
#include "command.h"
#include "core/file.h"

namespace lazy::cli {

static void bench_attention(CLI::App& command) {
  struct Settings {
    benchmarks::AttentionBenchmark benchmark;
    std::string json, device = "cpu";
  };
  auto s = std::make_shared<Settings>();
  command.add_option("--device", s->device, "Device")->check(CLI::IsMember({"cpu"}))->capture_default_str();
  command.add_option("--length", s->benchmark.length, "Tokens")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--heads", s->benchmark.heads, "Heads")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--batch", s->benchmark.batch, "Batch size")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--head-dim", s->benchmark.head_dims, "Head sizes")->check(CLI::Range(1, 256))->capture_default_str();
  command.add_option("--dtype", s->benchmark.dtypes, "fp32, bf16")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command.add_option("--score-scale", s->benchmark.score_scale, "Standard deviation of the scores; larger, fewer alive pairs")
      ->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--repeats", s->benchmark.repeats, "Medians of this many")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--json", s->json, "Also write the figures to this file");
  command.callback([s] {
    const nlohmann::json result = benchmarks::run_attention(s->benchmark);
    if (!s->json.empty()) write_file_atomic(s->json, result.dump(2) + "\n");
  });
}

static void bench_decode(CLI::App& command) {
  struct Settings {
    benchmarks::DecodeBenchmark benchmark;
    std::string json, device = "cpu";
  };
  auto s = std::make_shared<Settings>();
  command.add_option("--device", s->device, "Device")->check(CLI::IsMember({"cpu"}))->capture_default_str();
  command.add_option("--keys", s->benchmark.keys, "Cached keys a sequence")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--heads", s->benchmark.heads, "Query heads")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--kv-heads", s->benchmark.kv_heads, "Key/value heads")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--batch", s->benchmark.batch, "Batch size")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--head-dim", s->benchmark.head_dims, "Head sizes")->check(CLI::Range(1, 256))->capture_default_str();
  command.add_option("--dtype", s->benchmark.dtypes, "fp32, bf16")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command.add_option("--score-scale", s->benchmark.score_scale, "Standard deviation of the scores; larger, fewer alive keys")
      ->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--repeats", s->benchmark.repeats, "Medians of this many")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--json", s->json, "Also write the figures to this file");
  command.callback([s] {
    const nlohmann::json result = benchmarks::run_decode(s->benchmark);
    if (!s->json.empty()) write_file_atomic(s->json, result.dump(2) + "\n");
  });
}

static void bench_tokenizer(CLI::App& command) {
  struct Settings {
    benchmarks::TokenizerBenchmark benchmark;
    std::string json;
  };
  auto s = std::make_shared<Settings>();
  command.add_option("--tokenizer", s->benchmark.tokenizer, "tokenizer.json, a .model file, or a folder with one")->required();
  command.add_option("--text", s->benchmark.text, "Text; its lines are the documents")->required()->check(CLI::ExistingFile);
  command.add_option("--python", s->benchmark.python, "Interpreter with the peer: tokenizers or sentencepiece")->capture_default_str();
  command.add_option("--repeats", s->benchmark.repeats, "The fastest of this many")->check(CLI::PositiveNumber)->capture_default_str();
  command.add_option("--json", s->json, "Also write the figures to this file");
  command.callback([s] {
    const nlohmann::json result = benchmarks::run_tokenizer(s->benchmark);
    if (!s->json.empty()) write_file_atomic(s->json, result.dump(2) + "\n");
  });
}

}  // namespace lazy::cli

LAZY_COMMAND(bench, "Measure speed beside a peer, after checking the results", [](CLI::App& command) {
  command.require_subcommand(1);
  command.footer("Example:\n  lazy bench attention --device cpu --json attention.json\n  lazy --threads 1 bench attention --length 1024\n  lazy bench decode --keys 32768\n"
                 "  lazy bench tokenizer --tokenizer gpt2/tokenizer.json --text book.txt --python .venv/bin/python");
  lazy::cli::bench_attention(*command.add_subcommand("attention", "lazy::attention beside PyTorch's softmax SDPA"));
  lazy::cli::bench_decode(*command.add_subcommand("decode", "lazy::decode beside PyTorch's softmax SDPA"));
  lazy::cli::bench_tokenizer(*command.add_subcommand("tokenizer", "Encoding on one thread beside tokenizers or sentencepiece"));
});
