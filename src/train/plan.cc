#include "train/plan.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/language_model.h"
#include "model/parameters.h"
#include "train/memory_estimate.h"
#include "train/run_info.h"

namespace lazy::train {

using distributed::kShardings;
using distributed::Sharding;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

Json parts_json(const std::vector<MemoryPart>& parts) {
  Json out = Json::object();
  for (const MemoryPart& part : parts) out[part.name] = part.bytes;
  return out;
}

// Returns one line with the smallest change of `config` (for all ranks) that needs at most `capacity` bytes. The number
// of tokens per step does not change.
std::string advice(const TrainConfig& config, MemoryQuery q, double capacity) {
  const int64_t sequences = config.tokens_per_step() / config.seq_len;
  const auto with_batch = [&](int64_t batch) {
    MemoryQuery other = q;
    other.batch_size = batch;
    other.accumulation = sequences / (batch * q.ranks);
    return other;
  };
  for (const Checkpointing checkpointing :
       {Checkpointing::none, Checkpointing::mlp, Checkpointing::attention, Checkpointing::full}) {
    if (checkpointing < q.checkpointing) continue;
    const bool more = checkpointing > q.checkpointing;
    q.checkpointing = checkpointing;
    for (int64_t batch = more ? q.batch_size : q.batch_size - 1; batch >= 1; --batch) {
      const MemoryQuery other = with_batch(batch);
      if (sequences % (batch * q.ranks) != 0 || static_cast<double>(peak_bytes(other)) > capacity) continue;
      std::string text = fmt::format("training.batch_size = {}", batch);
      if (config.global_batch_tokens == 0)
        text += fmt::format(", gradient_accumulation_steps = {}", other.accumulation);
      if (more) text += fmt::format(", activation_checkpointing = \"{}\"", name(checkpointing));
      return text + " fits";
    }
  }
  for (const Sharding sharding : kShardings) {
    MemoryQuery other = with_batch(1);
    other.sharding = sharding;
    if (sharding > q.sharding && static_cast<double>(peak_bytes(other)) <= capacity) {
      return fmt::format(
          "training.data_parallel = \"{}\" with batch_size = 1, activation_checkpointing = \"full\" fits",
          name(sharding));
    }
  }
  return "does not fit at any batch size: use a smaller model or GPUs with more memory";
}

Json memory_plan(const TrainConfig& config, const MemoryQuery& q, double capacity) {
  Json out{{"state", parts_json(state_parts(q))},
           {"activations", parts_json(activation_parts(q))},
           {"passing", parts_json(transient_parts(q))}};
  const int64_t peak = peak_bytes(q);
  out["peak_bytes"] = peak;
  out["fits"] = static_cast<double>(peak) <= capacity;
  if (out["fits"]) return out;
  double sum = 0;
  std::vector<MemoryPart> parts = state_parts(q);
  for (const auto& more : {activation_parts(q), transient_parts(q)})
    parts.insert(parts.end(), more.begin(), more.end());
  for (const MemoryPart& part : parts) {
    const bool transient = &part >= &parts[parts.size() - transient_parts(q).size()];
    if (sum + static_cast<double>(part.bytes) > capacity) {
      out["does_not_fit"] = part.name;
      break;
    }
    if (!transient) sum += static_cast<double>(part.bytes);
  }
  out["advice"] = advice(config, q, capacity);
  return out;
}

// Bytes that a rank sends per step. Ring algorithms send (ranks - 1) / ranks of the data that they reduce or gather.
Json traffic(const MemoryQuery& query) {
  const double pass = static_cast<double>(query.ranks - 1) / static_cast<double>(query.ranks);
  const double n = static_cast<double>(count_parameters(query.model).total), sum = 4 * n * pass;
  // Under full sharding every micro-batch communicates. The layers are gathered for the forward and for the backward
  // pass. The embedding and the output head are gathered once; if they are tied, the shared matrix is gathered twice.
  const auto products = static_cast<double>(product_weights(query.model)), rest = 4 * (n - products);
  const double gather = 2 * (query.bf16 ? 2 : 4) * products + (query.model.tie_embeddings ? 2 : 1) * rest;
  const double full = (4 * n + gather) * pass * static_cast<double>(query.accumulation);
  Json out = Json::object();
  for (const Sharding sharding : kShardings) {
    // An all-reduce of the gradients (replicate) sends 2 * sum bytes. So do a reduce-scatter of the gradients and an
    // all-gather of the weights together (zero2).
    out[name(sharding)] = sharding == Sharding::full_shard ? full : 2 * sum;
  }
  return out;
}

std::vector<std::string> missing_corpora(const TrainConfig& config) {
  std::vector<std::string> out;
  for (const fs::path& path : config.corpus.paths) {
    if (!fs::exists(path)) out.push_back(path.string());
  }
  return out;
}

Json data_plan(const TrainConfig& config, const Sequences* sequences) {
  Json out{{"tokens", config.tokens_per_step() * config.steps}, {"corpora", Json::array()}};
  if (sequences) {
    out["corpora"] = corpus_facts(*sequences, config.tokens_per_step() / config.seq_len * config.steps);
  } else {
    out["missing"] = missing_corpora(config);
  }
  return out;
}

// Returns the largest batch size, up to the configured one, with which the GPUs divide the global batch evenly, or the
// configured batch size if no such size exists.
int64_t batch_that_divides(const TrainConfig& config, int64_t gpus) {
  for (int64_t batch = config.batch_size; batch > 0 && config.global_batch_tokens > 0; --batch) {
    if (config.global_batch_tokens % (gpus * batch * config.seq_len) == 0) return batch;
  }
  return config.batch_size;
}

}  // namespace

Json make_plan(const TrainConfig& single_gpu, const PlanOptions& options) {
  TrainConfig config = single_gpu;
  config.batch_size = batch_that_divides(single_gpu, options.gpus);
  config.set_ranks(options.gpus);
  std::optional<Sequences> sequences;
  if (missing_corpora(config).empty()) sequences.emplace(config.corpus, config.train_split, config.sequences);
  if (config.vocab_size_from_corpus) {
    if (!sequences) {
      fail("plan", "{}: the corpus does not exist yet, so its vocabulary size is unknown: add --set model.vocab_size=N",
           missing_corpora(config).front());
    }
    config.model.vocab_size = sequences->vocab_size();
  }
  const double capacity = options.gpu_memory_gib * 0x1p30;
  const ParameterCount count = count_parameters(config.model);
  MemoryQuery query{.model = config.model,
                    .batch_size = config.batch_size,
                    .seq_len = config.seq_len,
                    .accumulation = config.accumulation,
                    .ranks = options.gpus,
                    .bf16 = config.dtype_auto || config.dtype == "bf16",  // On a GPU "auto" selects bf16.
                    .fp8 = config.fp8,
                    .checkpointing = checkpointing_from(config.activation_checkpointing)};
  Json plan{{"name", config.name},
            {"kind", config.model.kind()},
            {"parameters", count.total},
            {"gpu", options.gpu},
            {"gpus", options.gpus},
            {"gpu_memory_gib", options.gpu_memory_gib},
            {"dtype", query.bf16 ? "bf16" : "fp32"},
            {"precision", query.fp8 ? "fp8" : "dtype"},
            {"activation_checkpointing", config.activation_checkpointing},
            {"batch_size", config.batch_size},
            {"configured_batch_size", single_gpu.batch_size},
            {"seq_len", config.seq_len},
            {"gradient_accumulation_steps", config.accumulation},
            {"tokens_per_step", config.tokens_per_step()},
            {"steps", config.steps},
            {"minutes", config.minutes}};
  for (const Sharding sharding : kShardings) {
    query.sharding = sharding;
    plan["memory"][name(sharding)] = memory_plan(config, query, capacity);
  }
  plan["bytes_sent_per_step"] = traffic(query);
  const double tokens = static_cast<double>(config.tokens_per_step()) * static_cast<double>(config.steps);
  if (const auto speed = expected_speed(config, options.speed)) {
    const double all = speed->tokens_per_second * static_cast<double>(options.gpus) * options.speed.scaling;
    plan["speed"] = {{"source", speed->source},
                     {"mfu", speed->mfu},
                     {"peak_tflops", options.speed.peak_tflops},
                     {"scaling", options.speed.scaling},
                     {"tokens_per_second_per_gpu", all / static_cast<double>(options.gpus)},
                     {"tokens_per_second", all},
                     {"seconds_per_step", static_cast<double>(config.tokens_per_step()) / all},
                     {"hours", tokens / all / 3600}};
    if (speed->peak_memory) plan["speed"]["measured_peak_memory_bytes"] = *speed->peak_memory;
  }
  plan["data"] = data_plan(config, sequences ? &*sequences : nullptr);
  int64_t stored = 0, bf16_bytes = 0;  // stored: number of elements in the model file; bf16_bytes: its size as bf16
  for (const ParameterShape& p : parameter_shapes(config.model)) {
    stored += p.count();
    bf16_bytes += p.count() * (p.keep_fp32 ? 4 : 2);
  }
  const int64_t checkpoint = 4 * stored + 8 * count.total;
  plan["checkpoint"] = {{"bytes", checkpoint},
                        {"kept", config.keep_last},
                        {"kept_bytes", checkpoint * config.keep_last},
                        {"model_bytes", config.export_dtype == "bf16" ? bf16_bytes : 4 * stored}};
  return plan;
}

}  // namespace lazy::train
