#include "train/planning/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/parameter_shapes.h"
#include "train/description.h"
#include "train/planning/memory.h"

namespace lazy::train {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr StateSharding kShardings[] = {StateSharding::replicate, StateSharding::zero2, StateSharding::full_shard};

// Micro-batches a step on each of `gpus`.
int64_t accumulation(const TrainConfig& config, int64_t gpus) {
  if (config.accumulation % gpus != 0) {
    fail("plan",
         "{} GPUs: a step of {} tokens is {} micro-batches of {} x {}, which do not divide among them; change "
         "training.batch_size",
         gpus, config.tokens_per_step(), config.accumulation, config.batch_size, config.seq_len);
  }
  return config.accumulation / gpus;
}

// What would fit instead: the least change first.
std::string advice(MemoryQuestion q, int64_t sequences, double capacity) {
  const auto fits = [&](const MemoryQuestion& other) { return static_cast<double>(peak_bytes(other)) <= capacity; };
  const auto with_batch = [&](int64_t batch) {
    MemoryQuestion other = q;
    other.batch_size = batch;
    other.accumulation = sequences / (batch * q.ranks);
    return other;
  };
  for (int64_t batch = q.batch_size - 1; batch >= 1; --batch) {
    if (sequences % (batch * q.ranks) == 0 && fits(with_batch(batch))) {
      return fmt::format("training.batch_size = {} fits", batch);
    }
  }
  q = with_batch(1);
  if (sequences % q.ranks != 0) return "fewer GPUs, or more tokens a step";
  for (const Recompute recompute : {Recompute::attention, Recompute::full}) {
    q.recompute = recompute;
    if (fits(q)) return fmt::format("training.batch_size = 1 with activation checkpointing ({}) fits", name(recompute));
  }
  for (int64_t ranks = q.ranks * 2; q.sharding != StateSharding::replicate && ranks <= 65536; ranks *= 2) {
    q.ranks = ranks;
    if (fits(q)) return fmt::format("{} GPUs, training.batch_size = 1 and full activation checkpointing fit", ranks);
  }
  return "divide more of the state (zero2, full_shard) or take a smaller model";
}

Json parts_json(const std::vector<MemoryPart>& parts) {
  Json out = Json::object();
  for (const MemoryPart& part : parts) out[part.name] = part.bytes;
  return out;
}

Json memory_plan(const MemoryQuestion& q, int64_t sequences, double capacity) {
  Json out{{"state", parts_json(state_parts(q))},
           {"activations", parts_json(activation_parts(q))},
           {"passing", parts_json(passing_parts(q))}};
  const int64_t peak = peak_bytes(q);
  out["peak_bytes"] = peak;
  out["fits"] = static_cast<double>(peak) <= capacity;
  if (out["fits"]) return out;
  double sum = 0;
  std::vector<MemoryPart> parts = state_parts(q);
  for (const auto& more : {activation_parts(q), passing_parts(q)}) parts.insert(parts.end(), more.begin(), more.end());
  for (const MemoryPart& part : parts) {
    const bool passing = &part >= &parts[parts.size() - passing_parts(q).size()];
    if (sum + static_cast<double>(part.bytes) > capacity) {
      out["does_not_fit"] = part.name;
      break;
    }
    if (!passing) sum += static_cast<double>(part.bytes);
  }
  out["advice"] = advice(q, sequences, capacity);
  return out;
}

// Bytes that a rank sends in a step: ring algorithms pass on (ranks - 1) / ranks of what they sum or gather.
Json traffic(int64_t parameters, int64_t element, int64_t ranks, int64_t micro_batches) {
  const double pass = static_cast<double>(ranks - 1) / static_cast<double>(ranks), n = static_cast<double>(parameters);
  const double sum = 4 * n * pass, weights = 4 * n * pass;
  const double gather =
      static_cast<double>(element) * n * pass * 2 * static_cast<double>(micro_batches);  // forward and backward
  return {{"replicate", 2 * sum}, {"zero2", sum + weights}, {"full_shard", sum + gather}};
}

Json data_plan(const TrainConfig& config) {
  Json out{{"tokens", config.tokens_per_step() * config.steps}, {"corpora", Json::array()}};
  for (const fs::path& path : config.corpus.paths) {
    if (fs::exists(path)) continue;
    out["missing"].push_back(path.string());
  }
  if (out.contains("missing")) return out;
  const Sequences sequences(config.corpus, config.train_split, config.sequences);
  out["corpora"] = part_facts(sequences, config.tokens_per_step() / config.seq_len * config.steps);
  return out;
}

}  // namespace

Json make_plan(const TrainConfig& config, const PlanOptions& options) {
  const int64_t micro = accumulation(config, options.gpus), sequences = config.tokens_per_step() / config.seq_len;
  const double capacity = options.gpu_memory_gib * 0x1p30;
  const ParameterCount count = count_parameters(config.model);
  const bool bf16 = config.dtype == "bf16";
  Json plan{{"name", config.name},
            {"kind", config.model.kind()},
            {"parameters", count.total},
            {"gpus", options.gpus},
            {"gpu_memory_gib", options.gpu_memory_gib},
            {"dtype", config.dtype},
            {"batch_size", config.batch_size},
            {"seq_len", config.seq_len},
            {"gradient_accumulation_steps", micro},
            {"tokens_per_step", config.tokens_per_step()},
            {"steps", config.steps}};
  for (const StateSharding sharding : kShardings) {
    const MemoryQuestion q{config.model, config.batch_size, config.seq_len, micro, options.gpus, bf16, sharding};
    plan["memory"][name(sharding)] = memory_plan(q, sequences, capacity);
  }
  plan["bytes_sent_per_step"] = traffic(count.total, bf16 ? 2 : 4, options.gpus, micro);
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
  plan["data"] = data_plan(config);
  int64_t narrow = 0;  // bytes of the model in bf16: offsets and distance biases stay fp32
  for (const ParameterShape& p : parameter_shapes(config.model)) {
    const bool wide =
        p.name.find("learnable_bias") != std::string::npos || p.name.find("softmax_offset") != std::string::npos;
    narrow += p.count() * (wide ? 4 : 2);
  }
  int64_t stored = 0;
  for (const ParameterShape& p : parameter_shapes(config.model)) stored += p.count();
  const int64_t checkpoint = 4 * stored + 8 * count.total;
  plan["checkpoint"] = {{"bytes", checkpoint},
                        {"kept", config.keep_last},
                        {"kept_bytes", checkpoint * config.keep_last},
                        {"model_bytes", config.export_dtype == "bf16" ? narrow : 4 * stored}};
  return plan;
}

}  // namespace lazy::train
