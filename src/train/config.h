// The training configuration: all sections of a TOML file except [model]. docs/reference/configuration.md documents the
// keys.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "model/config.h"
#include "train/anomaly.h"
#include "train/schedule.h"

namespace lazy {
class Config;
}

namespace lazy::train {

struct AdamWOptions {
  double lr = 4e-4;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;  // Applies to the parameters for which LanguageModel::decays returns true.
};

struct TrainConfig {
  ModelConfig model;
  bool vocab_size_from_corpus = true;      // true if [model] vocab_size is absent or 0
  bool special_ids_from_tokenizer = true;  // true if [model] has neither bos_token_id nor eos_token_id
  // Key `from` of [model]: folder of the pretrained model to continue from. Empty: start from random weights.
  std::filesystem::path from;
  OffsetSchedule offset_schedule;  // key offset_schedule of [model]

  // [data]
  CorpusMix corpus;
  std::string train_split = "train", validation_split = "validation";
  SequenceOptions sequences;  // Options of the training split. The validation split is not shuffled.
  int64_t prefetch = 4;       // number of micro-batches to prefetch

  AdamWOptions optimizer;  // [optimizer]
  Schedule schedule;       // [lr_scheduler]

  // [training]
  std::string name;
  std::filesystem::path output;
  int64_t steps = 0;
  double minutes = 0;  // Maximum duration of the run in minutes. The number of steps is reduced to fit. 0: no limit.
  int64_t seq_len = 0;
  int64_t batch_size = 8;                   // sequences per micro-batch
  int64_t accumulation = 1;                 // micro-batches per step on each rank
  int64_t global_batch_tokens = 0;          // 0: computed from `accumulation` and the number of ranks
  std::string global_batch_where;           // file and line of global_batch_tokens, for error messages
  int64_t ranks = 1;                        // set by set_ranks()
  std::string data_parallel = "replicate";  // "replicate", "zero2" or "full_shard" (distributed/sharding.h)
  double communication_timeout = 600;       // timeout of communication between ranks, in seconds
  double max_norm = 1.0;                    // maximum L2 norm of all gradients; 0: no clipping
  uint64_t seed = 42;
  std::string dtype = "auto";   // load() replaces "auto" by "fp32" or "bf16"
  bool fp8 = false;             // whether training.precision is "fp8"
  bool dtype_auto = true;       // whether training.dtype is "auto" or absent
  std::string device = "auto";  // load() replaces "auto" by "cpu" or "cuda"
  bool deterministic = false;   // results are bitwise equal between runs, also on a GPU
  // Activations that the backward pass recomputes: "none", "mlp", "attention" or "full".
  std::string activation_checkpointing = "none";

  AnomalyOptions anomalies;  // the keys on_nan, on_spike and their limits

  // [validation]
  int64_t validation_every = 250;  // interval of validations in steps; 0: never
  int64_t validation_batches = 16;

  // [checkpoint]
  int64_t checkpoint_every = 500;     // interval of checkpoints in steps; 0: only at the end
  int64_t keep_last = 2;              // number of checkpoints to keep; 0: all
  int64_t keep_every = 0;             // checkpoints at multiples of this step are never removed; 0: disabled
  bool checkpoint_async = true;       // write checkpoints on a background thread
  bool export_every = false;          // write a Hugging Face model folder at each checkpoint
  std::string export_dtype = "fp32";  // dtype of the weights in model/ and exports/

  // [metrics]
  int64_t log_every = 10;
  bool tensorboard = true;
  int64_t attention_every = 0;       // interval of attention statistics in steps; 0: never
  double peak_tflops = 0;            // peak TFLOP/s of one device, to compute MFU; 0: unknown
  std::vector<int64_t> trace_steps;  // steps for which a Chrome trace is written

  // The complete configuration after defaults and overrides have been applied, as TOML with absolute paths.
  std::string toml;

  int64_t tokens_per_step() const { return ranks * accumulation * batch_size * seq_len; }
  // Computes `accumulation` from global_batch_tokens if that is set. Throws Error if global_batch_tokens is not a
  // multiple of the number of tokens that all ranks process per micro-batch.
  void set_ranks(int64_t count);

  // Reads a configuration file and applies overrides. Unknown keys and values out of range are errors. A relative path
  // in a file is relative to that file; a relative path in an override is relative to the working directory.
  static TrainConfig load(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});

  // The settings that determine the results of a run, by key. When a run resumes, they are compared with the settings
  // in the checkpoint.
  nlohmann::ordered_json settings() const;
};

}  // namespace lazy::train
