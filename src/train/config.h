// The training configuration: the sections of a TOML file other than [model]. docs/configuration.md documents the keys.
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
  double weight_decay = 0.01;  // only where LanguageModel::decays
};

struct TrainConfig {
  ModelConfig model;
  bool vocab_size_from_corpus = true;      // [model] vocab_size is absent or 0
  bool special_ids_from_tokenizer = true;  // [model] has neither bos_token_id nor eos_token_id
  std::filesystem::path from;              // [model] from: the folder whose model is trained on; empty: random weights
  OffsetSchedule offset_schedule;          // [model] offset_schedule

  // [data]
  CorpusMix corpus;
  std::string train_split = "train", validation_split = "validation";
  SequenceOptions sequences;  // of the training split; the validation split is not shuffled
  int64_t prefetch = 4;       // micro-batches read ahead

  AdamWOptions optimizer;  // [optimizer]
  Schedule schedule;       // [lr_scheduler]

  // [training]
  std::string name;
  std::filesystem::path output;
  int64_t steps = 0;
  double minutes = 0;  // that the run may take: fewer steps where they would take longer; 0: any time
  int64_t seq_len = 0;
  int64_t batch_size = 8;                   // sequences a micro-batch
  int64_t accumulation = 1;                 // micro-batches a step on each rank
  int64_t global_batch_tokens = 0;          // 0: follows from accumulation and the number of ranks
  std::string global_batch_where;           // its file and line, for error messages
  int64_t ranks = 1;                        // set_ranks
  std::string data_parallel = "replicate";  // or "zero2", "full_shard" (distributed/sharding.h)
  double communication_timeout = 600;       // seconds
  double max_norm = 1.0;                    // 0: no clipping
  uint64_t seed = 42;
  std::string dtype = "auto";                     // resolved: "fp32" or "bf16"
  bool fp8 = false;                               // precision was "fp8"
  bool dtype_auto = true;                         // dtype was "auto" or absent
  std::string device = "auto";                    // resolved: "cpu" or "cuda"
  bool deterministic = false;                     // bit-identical from run to run, also on a GPU
  std::string activation_checkpointing = "none";  // or "mlp", "attention", "full": what the backward pass recomputes

  AnomalyOptions anomalies;  // on_nan, on_spike, ...

  // [validation]
  int64_t validation_every = 250;  // steps, 0: never
  int64_t validation_batches = 16;

  // [checkpoint]
  int64_t checkpoint_every = 500;     // steps, 0: only at the end
  int64_t keep_last = 2;              // 0: all
  int64_t keep_every = 0;             // checkpoints of its multiples are never removed; 0: none
  bool checkpoint_async = true;       // write in the background
  bool export_every = false;          // a Hugging Face folder at each checkpoint
  std::string export_dtype = "fp32";  // of model/ and exports/

  // [metrics]
  int64_t log_every = 10;
  bool tensorboard = true;
  int64_t attention_every = 0;       // steps, 0: never
  double peak_tflops = 0;            // of one device, for MFU; 0: unknown
  std::vector<int64_t> trace_steps;  // write a Chrome trace of these steps

  // The resolved configuration as TOML, with absolute paths.
  std::string toml;

  int64_t tokens_per_step() const { return ranks * accumulation * batch_size * seq_len; }
  // Sets `accumulation` from global_batch_tokens where that is given. Error if it is not a multiple of the ranks'
  // tokens.
  void set_ranks(int64_t count);

  // Reads a file and its overrides. Unknown keys and values out of range are errors. A relative path in a file is
  // relative to that file; in an override, to the working directory.
  static TrainConfig load(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});

  // The settings that determine a run's numbers, by key: a checkpoint is compared with the configuration that resumes
  // it.
  nlohmann::ordered_json settings() const;
};

}  // namespace lazy::train
