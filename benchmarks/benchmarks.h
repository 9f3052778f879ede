// The benchmarks of `lazy bench`: options and entry points. Each benchmark checks its results, measures its own time
// and the time of a reference implementation (the peer), prints a table to stdout, and returns the same figures as
// JSON.
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
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t batch = 1, length = 4096, heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  double score_scale = 1;  // standard deviation of the scores; for a larger value, fewer weights are nonzero
  int repeats = 9;         // number of runs; the median is reported
};

// Checks every variant against the float64 definition on a short problem (throws RunError if one is wrong), then times
// it and prints a table to stdout. Returns the same figures.
nlohmann::json run_attention(const AttentionBenchmark& options);

// Speed of lazy::decode compared with PyTorch's scaled_dot_product_attention (softmax), for one new token per sequence
// and a long cache. On the CPU, both use the same number of threads. On a GPU, PyTorch uses cuDNN and FlashAttention-2.
struct DecodeBenchmark {
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t batch = 1, keys = 32768, heads = 8, kv_heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  // Standard deviation of the scores. With tau = -1, a key has a nonzero weight if its score exceeds the logarithm of
  // the mean of exp(score) over all keys, which is score_scale^2 / 2. With 1.35, this holds for a quarter of the keys.
  double score_scale = 1.35;
  int repeats = 15;  // number of runs; the median is reported
};

// Checks every variant against the float64 definition on a short cache (throws RunError if one is wrong), then times it
// and prints a table to stdout. Returns the same figures.
nlohmann::json run_decode(const DecodeBenchmark& options);
// The part of run_decode for device "cuda". Loads the CUDA operators; throws std::runtime_error if they cannot be
// loaded. Suitable options for a large GPU: batch 16, 16 heads, 16 or 4 kv_heads, bf16.
nlohmann::json run_decode_cuda(const DecodeBenchmark& options);

// Speed of the fused operators RMSNorm, SwiGLU and RoPE, forward and backward. They are bound by memory bandwidth, so
// their GB/s are compared with a plain copy in the same process.
struct FusedBenchmark {
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t rows = 0;            // number of rows (tokens); 0: 32768 on a GPU, 4096 on the CPU
  std::vector<int64_t> dims = {1024, 2048, 4096};
  std::vector<std::string> dtypes = {"bf16"};  // "fp32", "bf16" and, on a GPU, "fp16"
  int repeats = 15;                            // number of runs; the median is reported
};

// Checks every operator against the float64 definition on a small number of rows (throws RunError if one is wrong),
// then times it and prints a table to stdout: GB/s count each input and each output once. Returns the same figures.
// With "cuda" it loads the CUDA operators (throws std::runtime_error if they cannot be loaded).
nlohmann::json run_fused(const FusedBenchmark& options);

// Comparison of the mixers: speed of training and of generation, and size of the state, by sequence length. The shapes
// are taken from configs/models/*-340m.toml, optionally with fewer layers and a small vocabulary.
struct MixersBenchmark {
  std::string device = "auto";      // "auto", "cpu" or "cuda"
  std::string dtype = "auto";       // "auto", "fp32" or "bf16"
  std::vector<std::string> models;  // names such as "retnet", for configs/models/retnet-340m.toml; empty: all models
  std::vector<int64_t> lengths;     // tokens per sequence; empty: 1024 on a CPU, 1024 to 65536 on a GPU
  int64_t layers = 0;               // number of layers; 0: 2 on a CPU, the number of layers of the model on a GPU
  int64_t tokens = 0;               // tokens per training step, at least one sequence; 0: 2048 on a CPU, 32768 on a GPU
  int64_t steps = 3;                // training steps, and rounds that generate 16 tokens; the medians are reported
  std::function<void(const nlohmann::json&)> after_model;  // called after each model with the results so far
};

// Measures one model after another, so that the run can be stopped before slow models begin. Prints a table and returns
// its rows: model, length, train_tokens_per_second, decode_ms_per_token, state_bytes (for a sequence of that length),
// peak_memory_bytes (GPU), and each speed as a multiple of the softmax transformer's speed.
nlohmann::json run_mixers(const MixersBenchmark& options);

// Speed of training: tokens per second for whole steps (data, forward, backward, sums over the ranks, gradient
// clipping, AdamW), the time of each part of the step, the most expensive kernels, and the memory use.
struct TrainBenchmark {
  ModelConfig model;
  std::string name;             // name of the model in the output
  std::string device = "auto";  // "auto", "cpu" or "cuda"
  std::string dtype = "auto";   // "auto", "fp32" or "bf16"
  bool fp8 = false;             // compute the matrix products of linear layers in fp8
  // The part of a layer that the backward pass recomputes: "none", "mlp", "attention" or "full".
  std::string checkpointing = "none";
  int64_t batch = 8, length = 4096;  // shape of a micro-batch
  int64_t accumulation = 1;
  int64_t steps = 10;  // number of timed steps, which follow three warm-up steps
  std::string corpus;  // folder written by `lazy data prepare`; "": random tokens on the device
  // "replicate", "zero2" or "full_shard"; only used if a launcher started several ranks
  std::string data_parallel = "replicate";
  bool profile = false;  // measure kernel times: the ten slowest are printed, all are returned
};

// Prints a table and returns the same figures on the first rank: tokens_per_second, mfu, peak_memory_bytes, and the
// milliseconds of each part of a step. Returns null on other ranks. Communication that overlaps with computation is not
// reported, only the time that the device waits for communication after the backward pass.
nlohmann::json run_train(const TrainBenchmark& options);
// Returns the figures without printing a table.
nlohmann::json measure_train(const TrainBenchmark& options);

// Speed of scoring benchmark questions, compared with a plain method. In the plain method, every choice forms a padded
// row together with its context, and the logits of all positions are computed. The questions are random tokens with
// lengths around the given averages.
struct EvalBenchmark {
  ModelConfig model;
  std::string name;             // name of the model in the output
  std::string device = "auto";  // "auto", "cpu" or "cuda"
  std::string dtype = "auto";   // "auto", "fp32" or "bf16"
  int64_t questions = 64, choices = 4;
  int64_t context = 80, choice = 24;  // average number of tokens; actual lengths are 0.5 to 1.5 times as large
  int64_t batch = 16;                 // rows per batch in the plain method
  int repeats = 3;                    // number of runs; the median is reported
};

// Prints a table and returns the same figures: milliseconds, requests_per_second, tokens of both methods. Throws
// RunError if the log-likelihoods differ by more than rounding.
nlohmann::json run_eval(const EvalBenchmark& options);

// Speed and memory of the sink statistics of one long sequence, compared with the plain forward pass of the same model.
// No n x n matrix is stored.
struct SinksBenchmark {
  ModelConfig model;
  std::string name;             // name of the model in the output
  std::string device = "auto";  // "auto", "cpu" or "cuda"
  std::string dtype = "auto";   // "auto", "fp32" or "bf16"
  int64_t length = 0;           // tokens of the sequence; 0: 32768 on a GPU, 2048 on the CPU
  int64_t checked = 192;        // tokens of a shorter sequence whose statistics are compared with the definition
  int repeats = 5;              // number of runs; the median is reported
};

// Prints a table and returns the same figures: milliseconds and (on a GPU) peak bytes of both passes, and their ratios.
// Throws RunError if the statistics of the short sequence differ from the statistics of the full matrices.
nlohmann::json run_sinks(const SinksBenchmark& options);

// Speed of the tokenizer on one thread, compared with the Python package `tokenizers` (for tokenizer.json) or
// `sentencepiece` (for .model files).
struct TokenizerBenchmark {
  std::string tokenizer;           // folder or file for load_tokenizer()
  std::string text;                // file; its lines are the documents
  std::string python = "python3";  // interpreter that has the Python package
  int repeats = 5;                 // number of runs; the fastest is reported, for both implementations
};

// Prints a table and returns the same figures. Throws RunError if the peer's ids differ from ours. If the peer is
// missing, this is reported and only our tokenizer is timed.
nlohmann::json run_tokenizer(const TokenizerBenchmark& options);

}  // namespace lazy::benchmarks
