#include "train/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/config_files.h"
#include "core/error.h"
#include "model/device.h"

namespace lazy::train {
namespace fs = std::filesystem;

namespace {

std::string toml_string(const std::string& text) { return nlohmann::json(text).dump(); }

// Upper limit of the default for training.seq_len. Pretrained models support longer contexts than most machines can
// train.
constexpr int64_t kLongestDefault = 2048;

void read_model(Config& config, TrainConfig& c) {
  auto model = config.section("model");
  c.offset_schedule = OffsetSchedule::from_config(config);
  c.from = pretrained_folder(config);
  c.vocab_size_from_corpus = c.from.empty() && model.integer("vocab_size", 0, 0) == 0;
  c.special_ids_from_tokenizer = c.from.empty() && !model.has("bos_token_id") && !model.has("eos_token_id");
  c.model = ModelConfig::from_toml(config);
  if (!c.offset_schedule.used) return;
  if (!c.model.has_offset() || !c.model.attention.offset_trainable) {
    fail("config", "{}: model.offset_schedule: expected a model with learned offsets (Elastic-Softmax){}, found {}",
         config.name(), c.from.empty() ? "" : "; convert a softmax model with `lazy convert DIR --to lazy`",
         c.model.has_offset() ? "offset_trainable = false" : c.model.kind());
  }
}

void read_data(Config& config, TrainConfig& c) {
  auto data = config.section("data");
  for (const std::string& corpus : data.strings("corpus", {})) {
    c.corpus.paths.push_back(data.resolved("corpus", corpus));
  }
  c.corpus.weights = data.numbers("weights", {});
  if (data.has("corpus") && c.corpus.paths.empty()) {
    fail("config", "{}: data.corpus: expected a corpus or a list of corpora", data.where("corpus"));
  }
  if (data.has("weights") && c.corpus.weights.size() != c.corpus.paths.size()) {
    fail("config", "{}: data.weights: expected one weight for each of the {} corpora, found {}", data.where("weights"),
         c.corpus.paths.size(), c.corpus.weights.size());
  }
  for (const double weight : c.corpus.weights) {
    if (weight > 0 && std::isfinite(weight)) continue;
    fail("config", "{}: data.weights: expected numbers above 0, found {}", data.where("weights"), weight);
  }
  c.train_split = data.string("train_split", c.train_split);
  c.validation_split = data.string("validation_split", c.validation_split);
  c.sequences.eos_per_document = data.boolean("eos_per_document", false);
  c.sequences.bos_per_document = data.boolean("bos_per_document", !c.sequences.eos_per_document);
  if (c.sequences.bos_per_document && c.sequences.eos_per_document) {
    fail("config",
         "{}: documents are separated by either BOS or EOS: set bos_per_document or eos_per_document in [data], not "
         "both",
         data.where("bos_per_document"));
  }
  c.sequences.bos_per_sequence = data.boolean("bos_per_sequence", false);
  c.sequences.mask_position = data.integer("mask_position", 0, 0);
  c.sequences.documents_per_group = data.integer("documents_per_group", 2048, 1);
  c.sequences.shuffle = data.boolean("shuffle", true);
  const bool windows = data.choice("packing", "groups", {"groups", "windows"}) == "windows";
  c.sequences.packing = windows ? Packing::windows : Packing::groups;
  c.prefetch = data.integer("prefetch", c.prefetch, 1, 1024);
}

void read_training(Config& config, const fs::path& path, TrainConfig& c) {
  auto training = config.section("training");
  const std::string name = config_name(path);
  const std::string output = training.string("output", "");
  c.output = output.empty() ? fs::absolute(fs::path("runs") / name) : training.resolved("output", output);
  c.name = training.string("name", c.output.filename().string());
  // The default is never used, because require() checks that the key exists.
  c.steps = training.integer("steps", std::numeric_limits<int32_t>::max(), 1);
  c.minutes = training.number("minutes", 0, 0);
  if (c.from.empty()) {
    c.seq_len = training.integer("seq_len", c.model.max_length, 2);
    if (!config.section("model").has("max_position_embeddings")) c.model.max_length = c.seq_len;
  } else {
    c.seq_len = training.integer("seq_len", std::min(c.model.max_length, kLongestDefault), 2, c.model.max_length);
  }
  c.batch_size = training.integer("batch_size", c.batch_size, 1);
  c.max_norm = training.number("max_norm", c.max_norm, 0);
  c.seed = static_cast<uint64_t>(training.integer("seed", 42, 0));
  c.device = resolve_device(training.choice("device", "auto", {"auto", "cpu", "cuda"}), "training.device");
  const std::string dtype = training.choice("dtype", "auto", {"auto", "fp32", "bf16"});
  c.dtype_auto = dtype == "auto";
  c.dtype = resolve_dtype(dtype, c.device);
  c.fp8 = training.choice("precision", "dtype", {"dtype", "fp8"}) == "fp8";
  if (c.fp8 && dtype == "fp32")
    fail("config", "{}: training.precision: \"fp8\" needs training.dtype = \"bf16\", found \"fp32\"",
         training.where("precision"));
  c.deterministic = training.boolean("deterministic", false);
  c.activation_checkpointing =
      training.choice("activation_checkpointing", "none", {"none", "mlp", "attention", "full"});
  const bool by_tokens = training.has("global_batch_tokens");
  if (by_tokens && training.has("gradient_accumulation_steps")) {
    fail("config", "{}: [training] accepts gradient_accumulation_steps or global_batch_tokens, not both",
         training.where("global_batch_tokens"));
  }
  c.accumulation = training.integer("gradient_accumulation_steps", 1, 1);
  c.global_batch_tokens = training.integer("global_batch_tokens", 0, 1);
  c.global_batch_where = training.where("global_batch_tokens");
  c.set_ranks(1);
  c.data_parallel = training.choice("data_parallel", c.data_parallel, {"replicate", "zero2", "full_shard"});
  c.communication_timeout = training.number("communication_timeout", c.communication_timeout, 1);
}

void read_optimizer(Config& config, TrainConfig& c) {
  auto optimizer = config.section("optimizer");
  optimizer.choice("name", "AdamW", {"AdamW"});
  auto& o = c.optimizer;
  o.lr = optimizer.number("lr", o.lr, 0);
  o.beta1 = optimizer.number("beta1", o.beta1, 0, 1 - 1e-9);
  o.beta2 = optimizer.number("beta2", o.beta2, 0, 1 - 1e-9);
  o.eps = optimizer.number("eps", o.eps, 0);
  o.weight_decay = optimizer.number("weight_decay", o.weight_decay, 0);
  c.schedule = Schedule::from_config(config, o.lr, c.steps);
}

void read_observation(Config& config, TrainConfig& c) {
  auto validation = config.section("validation");
  c.validation_every = validation.integer("every", c.validation_every, 0);
  c.validation_batches = validation.integer("batches", c.validation_batches, 1);
  auto checkpoint = config.section("checkpoint");
  c.checkpoint_every = checkpoint.integer("every", c.checkpoint_every, 0);
  c.keep_last = checkpoint.integer("keep_last", c.keep_last, 0);
  c.keep_every = checkpoint.integer("keep_every", c.keep_every, 0);
  c.checkpoint_async = checkpoint.boolean("async", c.checkpoint_async);
  c.export_every = checkpoint.choice("export", "end", {"end", "every"}) == "every";
  c.export_dtype = checkpoint.choice("export_dtype", c.export_dtype, {"fp32", "bf16"});
  auto metrics = config.section("metrics");
  c.log_every = metrics.integer("log_every", c.log_every, 1);
  c.tensorboard = metrics.boolean("tensorboard", c.tensorboard);
  c.attention_every = metrics.integer("attention_every", c.validation_every, 0);
  c.peak_tflops = metrics.number("peak_tflops", c.dtype == "bf16" ? peak_bf16_tflops(c.device) : 0, 0);
  for (const double step : metrics.numbers("trace_steps", {})) {
    if (step < 1 || step != std::floor(step)) {
      fail("config", "{}: metrics.trace_steps: expected steps counted from 1, found {}", metrics.where("trace_steps"),
           step);
    }
    c.trace_steps.push_back(static_cast<int64_t>(step));
  }
}

// Runs after check_all_used(), so that a misspelled section or key is reported by its name.
void require(Config& config, const std::string& section, const std::string& key) {
  if (!config.section(section).has(key)) fail("config", "{}: [{}] needs '{}'", config.name(), section, key);
}

}  // namespace

TrainConfig TrainConfig::load(const fs::path& path, const std::vector<std::string>& overrides) {
  Config config = Config::load(path, overrides);
  TrainConfig c;
  read_model(config, c);
  read_training(config, path, c);
  c.anomalies = AnomalyOptions::from_config(config);
  read_data(config, c);
  c.sequences.length = c.seq_len;
  c.sequences.seed = c.seed;
  read_optimizer(config, c);
  read_observation(config, c);
  config.check_all_used();
  require(config, "training", "steps");
  require(config, "data", "corpus");
  ModelConfig trained = c.model;
  // A vocab_size of 0 is allowed here, because it is replaced by the vocabulary size of the corpus later.
  trained.vocab_size = std::max<int64_t>(trained.vocab_size, 1);
  try {
    trained.validate();
  } catch (const Error& e) {
    throw Error(fmt::format("{} ({})", e.what(), config.name()));
  }
  auto absolute = overrides;
  std::vector<std::string> corpora;
  for (const fs::path& corpus : c.corpus.paths) corpora.push_back(toml_string(corpus.string()));
  const std::string list = fmt::format("[{}]", fmt::join(corpora, ", "));
  absolute.push_back("data.corpus=" + (corpora.size() == 1 ? corpora[0] : list));
  if (!c.from.empty()) absolute.push_back("model.from=" + toml_string(c.from.string()));
  absolute.push_back("training.output=" + toml_string(c.output.string()));
  absolute.push_back("training.name=" + toml_string(c.name));
  c.toml = Config::load(path, absolute).to_toml();
  return c;
}

void TrainConfig::set_ranks(int64_t count) {
  ranks = count;
  if (global_batch_tokens == 0) return;
  const int64_t together = ranks * batch_size * seq_len;
  if (global_batch_tokens % together != 0) {
    fail("config",
         "{}: training.global_batch_tokens: expected a multiple of {}batch_size x seq_len = {}{} x {} = {}, found {}",
         global_batch_where, ranks > 1 ? "ranks x " : "", ranks > 1 ? fmt::format("{} x ", ranks) : "", batch_size,
         seq_len, together, global_batch_tokens);
  }
  accumulation = global_batch_tokens / together;
}

nlohmann::ordered_json TrainConfig::settings() const {
  nlohmann::ordered_json out{
      {"data.bos_per_document", sequences.bos_per_document},
      {"data.eos_per_document", sequences.eos_per_document},
      {"data.bos_per_sequence", sequences.bos_per_sequence},
      {"data.documents_per_group", sequences.documents_per_group},
      {"data.shuffle", sequences.shuffle},
      {"data.packing", sequences.packing == Packing::windows ? "windows" : "groups"},
      {"data.weights", corpus.weights},
      {"optimizer.lr", optimizer.lr},
      {"optimizer.beta1", optimizer.beta1},
      {"optimizer.beta2", optimizer.beta2},
      {"optimizer.eps", optimizer.eps},
      {"optimizer.weight_decay", optimizer.weight_decay},
  };
  schedule.add_settings(out);
  out.update(nlohmann::ordered_json{
      {"training.steps", steps},
      {"training.seq_len", seq_len},
      {"training.batch_size", batch_size},
      // This product is the number of micro-batches over all ranks. A run with the same number of tokens per step on a
      // different number of ranks is treated as the same run.
      {"training.gradient_accumulation_steps", ranks * accumulation},
      {"training.max_norm", max_norm},
      {"training.seed", seed},
      {"training.dtype", dtype},
      {"training.device", device},
  });
  // Written only if enabled, because older checkpoints and the records in docs/results/records lack these keys.
  if (fp8) out["training.precision"] = "fp8";
  if (offset_schedule.used) {
    out["offset_schedule"] = {
        {"from", offset_schedule.from}, {"to", offset_schedule.to}, {"steps", offset_schedule.steps}};
  }
  if (deterministic) out["training.deterministic"] = true;
  if (sequences.mask_position > 0) out["data.mask_position"] = sequences.mask_position;
  return out;
}

}  // namespace lazy::train
