// The benchmarks of `lazy bench`: options and entry points. Each one checks its results before timing them, times a
// peer in the same process, prints a table to stdout and returns the same figures as JSON.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy::benchmarks {

// Speed of causal lazy::attention compared with PyTorch's scaled_dot_product_attention (softmax): on the CPU with the
// same number of threads, on a GPU with its cuDNN and FlashAttention-2 kernels.
struct AttentionBenchmark {
  std::string device = "cpu";  // or cuda
  int64_t batch = 1, length = 4096, heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  double score_scale = 1;  // standard deviation of the scores: larger means fewer alive pairs
  int repeats = 9;         // medians of this many
};

// Checks every variant against the float64 definition on a short problem (RunError if one is wrong), then times it
// and prints a table to stdout. Returns the same figures.
nlohmann::json run_attention(const AttentionBenchmark& options);

// Speed of lazy::decode compared with PyTorch's scaled_dot_product_attention (softmax): one new token per sequence with
// a long cache, on the CPU with the same number of threads, or on a GPU compared with cuDNN and FlashAttention-2.
struct DecodeBenchmark {
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t batch = 1, keys = 32768, heads = 8, kv_heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  // Standard deviation of the scores. A key is alive above ln of the mean exponential, scale^2 / 2: 1.35 leaves a
  // quarter.
  double score_scale = 1.35;
  int repeats = 15;  // medians of this many
};

// Checks every variant against the float64 definition on a short cache (RunError when one is wrong), then times it and
// prints a table to stdout. Returns the same figures.
nlohmann::json run_decode(const DecodeBenchmark& options);
// The same for device "cuda"; loads the CUDA operators (std::runtime_error if they cannot be loaded). Suitable options
// for a large GPU: batch 16, 16 heads, 16 or 4 kv_heads, bf16.
nlohmann::json run_decode_cuda(const DecodeBenchmark& options);

// Speed of the fused operators (RMSNorm, SwiGLU, RoPE, forward and backward) compared with a plain copy in the same
// process, because they are bound by memory bandwidth.
struct FusedBenchmark {
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t rows = 0;            // tokens; 0: 32768 on a GPU, 4096 on the CPU
  std::vector<int64_t> dims = {1024, 2048, 4096};
  std::vector<std::string> dtypes = {"bf16"};  // "fp32", "bf16" and, on a GPU, "fp16"
  int repeats = 15;                            // medians of this many
};

// Checks every operator against the float64 definition on a small number of rows (RunError if one is wrong), then times
// it and prints a table to stdout: GB/s count each input and each output once. Returns the same figures. With "cuda" it
// loads the CUDA operators (std::runtime_error if they cannot be loaded).
nlohmann::json run_fused(const FusedBenchmark& options);

// Comparison of the mixers: speed of training and of generation, and size of the state, by sequence length. The shapes
// are taken from configs/models/*-340m.toml, optionally with fewer layers and a small vocabulary.
struct MixersBenchmark {
  std::string device = "auto";      // "cpu", "cuda"
  std::string dtype = "auto";       // "fp32", "bf16"
  std::vector<std::string> models;  // "retnet", ...: configs/models/NAME-340m.toml; empty: all
  std::vector<int64_t> lengths;     // tokens per sequence; empty: 1024 on a CPU, 1024 to 65536 on a GPU
  int64_t layers = 0;               // 0: 2 on a CPU, the model's own on a GPU
  int64_t tokens = 0;               // per training step, at least one sequence; 0: 2048 on a CPU, 32768 on a GPU
  int64_t steps = 3;                // training steps, and rounds of 16 generated tokens; the median is reported
  std::function<void(const nlohmann::json&)> after_model;  // receives the results so far
};

// Runs one model after the other, so that slow models can be cut off. Prints a table and returns its rows: model,
// length, train_tokens_per_second, decode_ms_per_token, state_bytes (for a sequence of that length), peak_memory_bytes
// (GPU), and each speed as a multiple of the softmax transformer's speed.
nlohmann::json run_mixers(const MixersBenchmark& options);

// Speed of training: tokens per second for whole steps (data, forward, backward, sums over the ranks, clipping, AdamW),
// the fraction of the step that each part takes, the most expensive kernels, and the memory use.
struct TrainBenchmark {
  ModelConfig model;
  std::string name;                    // of the model, for the figures
  std::string device = "auto";         // "cpu", "cuda"
  std::string dtype = "auto";          // "fp32", "bf16"
  bool fp8 = false;                    // products of linear layers
  std::string checkpointing = "none";  // "mlp", "attention", "full"
  int64_t batch = 8, length = 4096;    // of a micro-batch
  int64_t accumulation = 1;
  int64_t steps = 10;                       // timed steps, after three warm-up steps
  std::string corpus;                       // of `lazy data prepare`; "": random tokens on the device
  std::string data_parallel = "replicate";  // "zero2", "full_shard": of the ranks that a launcher started
  bool profile = false;                     // kernels by time: ten are printed, all returned
};

// Prints a table and returns the same figures on the first rank: tokens_per_second, mfu, peak_memory_bytes,
// milliseconds of the parts; returns null on other ranks. Communication is the exposed part: the time that the device
// waits after the backward pass.
nlohmann::json run_train(const TrainBenchmark& options);
// Returns the figures without printing a table.
nlohmann::json measure_train(const TrainBenchmark& options);

// Speed of scoring benchmark questions, compared with the plain method: every choice with its context is a padded row,
// and the logits of all positions are computed. The questions are random tokens with lengths around the given averages.
struct EvalBenchmark {
  ModelConfig model;
  std::string name;             // of the model, for the figures
  std::string device = "auto";  // "cpu", "cuda"
  std::string dtype = "auto";   // "fp32", "bf16"
  int64_t questions = 64, choices = 4;
  int64_t context = 80, choice = 24;  // average tokens; actual lengths are 0.5 to 1.5 times this
  int64_t batch = 16;                 // rows of the plain method
  int repeats = 3;                    // medians of this many
};

// Prints a table and returns the same figures: milliseconds, requests_per_second, tokens of both methods. RunError if
// the log-likelihoods differ by more than rounding.
nlohmann::json run_eval(const EvalBenchmark& options);

// Speed and memory of the sink statistics of one long sequence, compared with the plain forward pass of the same model.
// No n x n matrix is stored.
struct SinksBenchmark {
  ModelConfig model;
  std::string name;             // of the model, for the figures
  std::string device = "auto";  // "cpu", "cuda"
  std::string dtype = "auto";   // "fp32", "bf16"
  int64_t length = 0;           // tokens of the sequence; 0: 32768 on a GPU, 2048 on the CPU
  int64_t checked = 192;        // tokens whose statistics are compared with the definition
  int repeats = 5;              // medians of this many
};

// Prints a table and returns the same figures: milliseconds and, on a GPU, peak bytes of both passes, their ratios.
// RunError if the statistics of the short sequence differ from the statistics of the full matrices.
nlohmann::json run_sinks(const SinksBenchmark& options);

// Speed of encoding on one thread, compared with the `tokenizers` package (tokenizer.json) or `sentencepiece` (.model),
// which a Python interpreter with this package runs.
struct TokenizerBenchmark {
  std::string tokenizer;           // an argument of load_tokenizer
  std::string text;                // file; its lines are the documents
  std::string python = "python3";  // runs the peer
  int repeats = 5;                 // the fastest of this many, for both
};

// Prints a table and returns the same figures. RunError if the peer's ids differ from ours. If the peer is missing,
// this is reported and only our tokenizer is timed.
nlohmann::json run_tokenizer(const TokenizerBenchmark& options);

}  // namespace lazy::benchmarks
