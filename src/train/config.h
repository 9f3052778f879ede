// Everything that `lazy train CONFIG.toml` reads outside [model]. docs/configuration.md says the same for people.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "model/config.h"
#include "train/fault_policy.h"
#include "train/schedule.h"

namespace lazy {
class Config;
}

namespace lazy::train {

struct AdamWOptions {
  double lr = 4e-4;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;  // only where LanguageModel::decays
};

struct TrainConfig {
  ModelConfig model;
  bool vocab_size_from_corpus = true;      // [model] names none, or 0
  bool special_ids_from_tokenizer = true;  // [model] names neither bos_token_id nor eos_token_id

  // [data]
  CorpusMix corpus;
  std::string train_split = "train", validation_split = "validation";
  SequenceOptions sequences;  // of the training split; validation reads in corpus order
  int64_t prefetch = 4;       // micro-batches read ahead

  AdamWOptions optimizer;  // [optimizer]
  Schedule schedule;       // [lr_scheduler]

  // [training]
  std::string name;
  std::filesystem::path output;
  int64_t steps = 0;
  int64_t seq_len = 0;
  int64_t batch_size = 8;                   // sequences a micro-batch
  int64_t accumulation = 1;                 // micro-batches a step on each rank
  int64_t global_batch_tokens = 0;          // 0: follows from accumulation and the number of ranks
  std::string global_batch_where;           // file and line, for messages
  int64_t ranks = 1;                        // set_ranks
  std::string data_parallel = "replicate";  // "zero2", "full_shard" (sharding.h)
  double communication_timeout = 600;       // seconds
  double max_norm = 1.0;                    // 0: no clipping
  uint64_t seed = 42;
  std::string dtype = "auto";                     // resolved: "fp32" or "bf16"
  bool dtype_auto = true;                         // "auto" was asked for, or nothing
  std::string device = "auto";                    // resolved: "cpu" or "cuda"
  bool deterministic = false;                     // the same bits from run to run on a GPU too
  std::string activation_checkpointing = "none";  // "mlp", "attention", "full": what the backward computes again

  FaultOptions faults;  // on_nan, on_spike, ...

  // [validation]
  int64_t validation_every = 250;  // steps, 0: never
  int64_t validation_batches = 16;

  // [checkpoint]
  int64_t checkpoint_every = 500;     // steps, 0: only at the end
  int64_t keep_last = 2;              // 0: all
  int64_t keep_every = 0;             // steps that stay for ever, 0: none
  bool checkpoint_async = true;       // written while training goes on
  bool export_every = false;          // a Hugging Face folder at each checkpoint
  std::string export_dtype = "fp32";  // of model/ and exports/

  // [metrics]
  int64_t log_every = 10;
  bool tensorboard = true;
  int64_t attention_every = 0;       // steps, 0: never
  double peak_tflops = 0;            // of a device, for MFU; resolved, 0: not known
  std::vector<int64_t> trace_steps;  // steps of which a Chrome trace is written

  // The resolved configuration as TOML that `lazy train` reads again: paths are absolute.
  std::string toml;

  int64_t tokens_per_step() const { return ranks * accumulation * batch_size * seq_len; }
  // Divides global_batch_tokens among the ranks; without it each has `accumulation` micro-batches. Error where it does
  // not divide.
  void set_ranks(int64_t count);

  // Reads a file and its overrides. Unknown keys and values out of range are errors. Relative paths are relative to the
  // file that names them; those given on the command line to the working directory.
  static TrainConfig load(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});

  // What decides the numbers of a run, key by key, for comparing a checkpoint with the configuration that resumes it.
  nlohmann::ordered_json settings() const;
};

}  // namespace lazy::train
