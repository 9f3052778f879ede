// Tests the dry run of training: the planned memory is compared with actual allocations, its advice must be consistent,
// and its speeds are compared with hand-computed values.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "counting_allocator.h"
#include "data/sequences.h"
#include "model/blocks/linear.h"
#include "model/blocks/shard_hooks.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"
#include "ranks.h"
#include "support/error_of.h"
#include "tiny_run.h"
#include "train/memory_estimate.h"
#include "train/optimizer.h"
#include "train/plan.h"
#include "train/throughput.h"
#include "train/trainer.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Not;
using Json = nlohmann::ordered_json;

int64_t sum(const std::vector<MemoryPart>& parts, const std::string& but = "") {
  int64_t total = 0;
  for (const MemoryPart& part : parts) total += part.name == but ? 0 : part.bytes;
  return total;
}

MemoryQuery tiny(const std::string& normalizer, bool bf16) {
  MemoryQuery q;
  q.model = {.vocab_size = 300,
             .hidden_size = 96,
             .num_layers = 3,
             .attention = {.num_heads = 6, .num_kv_heads = 2, .head_dim = 16},
             .mlp = {.intermediate_size = 160}};
  q.model.attention.normalizer = *kNormalizerNames.find(normalizer);
  q.model.attention.distance_bias_window = normalizer == "elastic" ? 32 : 0;
  q.model.tie_embeddings = !bf16;
  q.batch_size = 3;
  q.seq_len = 128;
  q.bf16 = bf16;
  return q;
}

// Every planned part of the memory must equal the allocated bytes, except for scalars such as the step counter and the
// loss.
TEST(PlannedMemory, PlannedMemory_MatchesAllocations) {
  constexpr int64_t kScalars = 64;
  for (const char* checkpointing : {"none", "mlp", "attention", "full"}) {
    for (const auto& [normalizer, type] : {std::pair{"softmax", "fp32"},
                                           {"softmax", "bf16"},
                                           {"softmax", "fp8"},
                                           {"elastic", "fp32"},
                                           {"elastic", "bf16"}}) {
      SCOPED_TRACE(fmt::format("{} {} {}", normalizer, type, checkpointing));
      const bool bf16 = std::string_view(type) != "fp32", fp8 = std::string_view(type) == "fp8";
      // With fp8 and checkpointing of the MLP, a CPU saves the output of the norm, but a GPU, for which the memory is
      // planned, does not.
      if (fp8 && std::string_view(checkpointing) == "mlp") continue;
      MemoryQuery q = tiny(normalizer, bf16);
      q.fp8 = fp8;
      q.gpu = false;
      q.checkpointing = checkpointing_from(checkpointing);
      const auto state = state_parts(q);
      ASSERT_EQ(state[1].name, "gradients, fp32");
      const at::Tensor ids = at::randint(300, {q.batch_size, q.seq_len}, at::kLong);
      {  // this first run allocates tables that are created only once per process
        LanguageModel model(q.model, 1);
        model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
        model.set_fp8(fp8);
        model.loss(ids, ids).backward();
      }
      CountingAllocator counter;
      const int64_t start = counter.live;
      LanguageModel model(q.model, 1);
      model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
      model.set_fp8(fp8);
      model.set_checkpointing(q.checkpointing);
      const int64_t weights = counter.live;
      EXPECT_EQ(weights - start, state[0].bytes);
      at::Tensor loss = model.loss(ids, ids);
      const int64_t kept = counter.live;
      EXPECT_NEAR(static_cast<double>(kept - weights),
                  static_cast<double>(sum(activation_parts(q), "tokens") + state[3].bytes), kScalars);
      loss.backward();
      loss.reset();
      // The bf16 copy of the output head's weights has been freed. The copies of the layers' weights are kept for the
      // next micro-batch.
      const int64_t head_copy = bf16 ? q.model.vocab_size * q.model.hidden_size * 2 : 0;
      EXPECT_NEAR(static_cast<double>(counter.live - weights),
                  static_cast<double>(state[1].bytes + state[3].bytes - head_copy), kScalars);
      const int64_t before = counter.live;
      AdamW optimizer(model.parameters(), {});
      EXPECT_NEAR(static_cast<double>(counter.live - before), static_cast<double>(state[2].bytes), kScalars);
    }
  }
}

ModelConfig of_mixer(const MixerKind& kind) {
  ModelConfig m{.vocab_size = 50,
                .hidden_size = 96,
                .num_layers = 3,
                .max_length = 128,
                .attention = {.num_heads = 6, .num_kv_heads = 6, .head_dim = 16},
                .mlp = {.intermediate_size = 160}};
  use_mixer(m, kind);
  infer_mixer_sizes(m);
  return m;
}

TEST(PlannedMemory, ProductWeights_CountEveryMixer) {
  std::vector<ModelConfig> models;
  for (const MixerKind* kind : mixer_kinds()) {
    models.push_back(of_mixer(*kind));
    models.push_back(models.back());
    models.back().mixer.attention_layers = {1};
  }
  models.push_back(tiny("softmax", false).model);
  models.back().positions.kind = PositionKind::transformer_xl;
  for (const ModelConfig& config : models) {
    const LanguageModel model(config, 1);
    int64_t weights = 0;
    for (const ShardUnit& part : model.shard_units()) {
      for (const Linear* product : part.products) {
        for (const at::Tensor& weight : product->parts()) weights += weight.numel();
      }
    }
    EXPECT_EQ(product_weights(config), weights)
        << name(config.mixer.type) << " " << config.mixer.attention_layers.size();
  }
}

// For a model of every mixer, alone and combined with attention layers, compares two planned values with allocations:
// the memory that the forward pass saves, and the peak memory of a step.
TEST(PlannedMemory, PlannedMemoryOfMixers_MatchesAllocations) {
  for (const MixerKind* kind : mixer_kinds()) {
    for (const auto& [hybrid, bf16, checkpointing] : {std::tuple{false, false, "none"},
                                                      {false, true, "none"},
                                                      {true, true, "none"},
                                                      {false, false, "attention"},
                                                      {false, true, "full"}}) {
      SCOPED_TRACE(fmt::format("{}{} {} {}", name(kind->type), hybrid ? " with attention" : "", bf16 ? "bf16" : "fp32",
                               checkpointing));
      MemoryQuery q{.model = of_mixer(*kind), .batch_size = 3, .seq_len = 64, .bf16 = bf16, .gpu = false};
      q.checkpointing = checkpointing_from(checkpointing);
      if (hybrid) q.model.mixer.attention_layers = {1};
      const auto state = state_parts(q);
      const int64_t planned = sum(activation_parts(q), "tokens"),
                    // called before `counter` is created, because peak_bytes() uses a separate counting allocator
          peak = peak_bytes(q);
      const at::Tensor ids = at::randint(50, {q.batch_size, q.seq_len}, at::kLong);
      CountingAllocator counter;
      const int64_t start = counter.live;
      LanguageModel model(q.model, 1);
      model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
      model.set_checkpointing(q.checkpointing);
      AdamW optimizer(model.parameters(), {});
      model.loss(ids, ids).backward();  // this first backward pass creates tables, gradients and copies of weights
      const int64_t before = counter.live;
      at::Tensor loss = model.loss(ids, ids);
      const int64_t head_copy = bf16 ? q.model.vocab_size * q.model.hidden_size * 2 : 0;
      EXPECT_NEAR(static_cast<double>(counter.live - before - head_copy), static_cast<double>(planned),
                  0.02 * static_cast<double>(planned));
      counter.peak = counter.live;
      loss.backward();
      EXPECT_NEAR(static_cast<double>(counter.peak - start), static_cast<double>(peak),
                  0.1 * static_cast<double>(peak));
    }
  }
}

// Mamba-2 saves the output of the input projection (gate, x, B, C, step), the output of the recurrence, which has the
// width of x, and on a CPU one recurrent state per chunk. The outputs of convolution, gate and norm are recomputed. In
// addition it saves two tensors with the width of the residual stream (the input of the layer and its norm) and the
// gates of each head.
TEST(PlannedMemory, Mamba2_SavesInputsOfConvolutionGateAndNorm) {
  ModelConfig model = of_mixer(*find_mixer("mamba2"));
  model.hidden_size = 256;
  model.mixer.heads = 8, model.mixer.value_dim = 64;
  model.mixer.state_size = model.mixer.key_dim = 16;
  const int64_t inner = 8 * 64, shared = model.mixer.groups * 16, state = 16 * inner / 64;
  const int64_t least = 2 * inner + 2 * shared + 8 + inner + state + 2 * model.hidden_size;
  const double numbers = measure_mixer_memory(model, 256, /*bf16=*/false).per_token / 4;
  EXPECT_GE(numbers, static_cast<double>(least));
  EXPECT_LT(numbers, static_cast<double>(least + inner / 2))
      << "the difference must be less than half of a tensor with the inner width";
}

// Per token, a layer with a recurrent state counts as 12 FLOPs per element of the state. An attention layer counts as
// 12 FLOPs per visible key and channel.
TEST(Throughput, Flops_CountRecurrentStates) {
  const ModelConfig retnet = of_mixer(*find_mixer("retnet"));
  const auto weights = static_cast<double>(count_parameters(retnet).untied - retnet.vocab_size * retnet.hidden_size);
  const auto state = static_cast<double>(3 * retnet.mixer.heads * retnet.mixer.key_dim * retnet.mixer.value_dim);
  EXPECT_DOUBLE_EQ(flops_per_token(retnet, 64), 6 * weights + 12 * state);
  EXPECT_DOUBLE_EQ(flops_per_token(retnet, 64), flops_per_token(retnet, 4096));
  EXPECT_EQ(retnet.num_kv_cache_layers(), 0);
  ModelConfig hybrid = retnet;
  hybrid.mixer.attention_layers = {2};
  EXPECT_EQ(hybrid.num_kv_cache_layers(), 1);
  EXPECT_GT(flops_per_token(hybrid, 4096), flops_per_token(hybrid, 64));
  ModelConfig mal = of_mixer(*find_mixer("titans_mal"));
  EXPECT_EQ(mal.num_kv_cache_layers(), 3);
  mal.attention.window = 16;
  EXPECT_EQ(mal.num_kv_cache_layers(), 0);
}

TEST(PlannedMemory, Sharding_DividesState) {
  MemoryQuery q = tiny("elastic", true);
  q.ranks = 8;
  q.accumulation = 2;
  const auto replicate = state_parts(q);
  q.sharding = Sharding::zero2;
  const auto zero2 = state_parts(q);
  q.sharding = Sharding::full_shard;
  const auto full = state_parts(q);
  EXPECT_EQ(zero2[0].bytes, replicate[0].bytes);
  EXPECT_EQ(zero2[2].bytes, (replicate[2].bytes + 7) / 8);
  EXPECT_EQ(full[0].bytes, (replicate[0].bytes + 7) / 8);
  EXPECT_EQ(full[1].bytes, (replicate[1].bytes + 7) / 8);
  // with one rank, all sharding modes need the same memory
  for (const Sharding sharding : {Sharding::zero2, Sharding::full_shard}) {
    q.ranks = 1;
    q.sharding = sharding;
    EXPECT_EQ(sum(state_parts(q)), sum(replicate));
  }
  q.checkpointing = Checkpointing::full;
  const int64_t least = peak_bytes(q);
  q.checkpointing = Checkpointing::attention;
  const int64_t less = peak_bytes(q);
  q.checkpointing = Checkpointing::none;
  EXPECT_LT(least, less);
  EXPECT_LT(less, peak_bytes(q));
}

TrainConfig shipped_with(const std::vector<std::string>& settings) {
  auto all = settings;
  all.insert(all.end(), {"data.corpus=unset"});
  return TrainConfig::load(
      LAZY_SOURCE_DIR "/configs/models/lazy-340m.toml+" LAZY_SOURCE_DIR "/configs/recipes/15b.toml", all);
}

TEST(Plan, Plan_NamesPartThatDoesNotFitAndAdvice) {
  PlanOptions options{.gpus = 2, .gpu_memory_gib = 139};
  const Json roomy = make_plan(shipped_with({}), options);
  for (const auto& [mode, plan] : roomy["memory"].items()) EXPECT_TRUE(plan["fits"].get<bool>()) << mode;
  EXPECT_EQ(roomy["gradient_accumulation_steps"], 8);
  options.gpu_memory_gib = 15;
  const Json tight = make_plan(shipped_with({}), options)["memory"]["replicate"];
  EXPECT_FALSE(tight["fits"].get<bool>());
  EXPECT_EQ(tight["does_not_fit"], "attention");
  ASSERT_THAT(tight["advice"].get<std::string>(), Names({"training.batch_size", 2}));
  EXPECT_TRUE(make_plan(shipped_with({"training.batch_size=2"}), options)["memory"]["replicate"]["fits"].get<bool>());
  EXPECT_FALSE(make_plan(shipped_with({"training.batch_size=4"}), options)["memory"]["replicate"]["fits"].get<bool>());
  options.gpu_memory_gib = 2;
  EXPECT_EQ(make_plan(shipped_with({}), options)["memory"]["replicate"]["does_not_fit"], "gradients, fp32");
  options.gpus = 3;
  EXPECT_THROW(make_plan(shipped_with({}), options), Error);  // 16 micro-batches cannot be divided among three GPUs
}

TEST(Plan, ManyGpus_UseBatchSizeThatDivides) {
  const Json plan = make_plan(shipped_with({}), {.gpu = "H200", .gpus = 64, .gpu_memory_gib = 139});
  EXPECT_EQ(plan["batch_size"], 2);  // with a larger batch size, one step of 64 GPUs would exceed the paper's batch
  EXPECT_EQ(plan["gradient_accumulation_steps"], 1);
  EXPECT_THAT(split(plan_text(plan), '\n'), Contains(Names({"training.batch_size", 2, 64, 8})));
  EXPECT_THROW(shipped_with({}).set_ranks(64), Error);  // training reports an error instead of choosing a batch size
  const Json one = make_plan(shipped_with({}), {.gpu = "H200", .gpus = 4, .gpu_memory_gib = 139});
  EXPECT_EQ(one["batch_size"], 8);
  EXPECT_THAT(plan_text(one), Not(Names({"training.batch_size"})));
}

TEST(Plan, Plan_WarnsAboutManyEpochsAndTimeLimit) {
  const ScratchFolder scratch;
  const fs::path path = write_tiny_config(scratch.path());
  const auto text = [&](const std::vector<std::string>& settings) {
    return split(plan_text(make_plan(TrainConfig::load(path, settings), {.gpu = "H200", .gpu_memory_gib = 139})), '\n');
  };
  const auto epochs = [&](int64_t steps) {
    const Json plan = make_plan(TrainConfig::load(path, {fmt::format("training.steps={}", steps)}),
                                {.gpu = "H200", .gpu_memory_gib = 139});
    return plan["data"]["corpora"][0]["epochs"].get<double>();
  };
  const auto few = static_cast<int64_t>(3.9 / epochs(1000) * 1000),
             many = static_cast<int64_t>(100 / epochs(1000) * 1000);
  const auto warning = Contains(::testing::AllOf(Names({"warning"}), Names({100})));
  EXPECT_THAT(text({fmt::format("training.steps={}", many)}), warning);
  EXPECT_THAT(text({fmt::format("training.steps={}", few)}), Not(Contains(Names({"warning"}))));
  EXPECT_THAT(text({}), Not(Contains(Names({"training.minutes"}))));
  EXPECT_THAT(text({"training.minutes=30"}), Contains(Names({"training.minutes", 30})));
}

TEST(Plan, Plan_WorksWithoutCorpus) {
  const ScratchFolder scratch;
  const Ended ended = run_lazy({"--model", "lazy-760m", "--recipe", "30b", "--dry-run", "--gpus", "64", "--mfu", "0.4"},
                               scratch.path());
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.output, Names({"corpus"}));
}

TEST(Plan, Plan_FollowsConfiguration) {
  PlanOptions options{.gpus = 4, .gpu_memory_gib = 139};
  const auto attention = [&](const std::string& checkpointing) {
    const Json plan = make_plan(shipped_with({"training.activation_checkpointing=" + checkpointing}), options);
    EXPECT_EQ(plan["activation_checkpointing"], checkpointing);
    return plan["memory"]["zero2"];
  };
  EXPECT_TRUE(attention("none")["activations"].contains("attention"));
  EXPECT_TRUE(attention("attention")["activations"].contains("inputs of attention"));
  EXPECT_TRUE(attention("full")["activations"].contains("inputs of the layers"));
  // the plan does not depend on the default dtype of this machine
  EXPECT_EQ(make_plan(shipped_with({}), options)["dtype"], "bf16");
  EXPECT_EQ(make_plan(shipped_with({"training.dtype=fp32"}), options)["dtype"], "fp32");
  // Training accepts every sharding mode that the plan lists.
  for (const auto& [mode, plan] : make_plan(shipped_with({}), options)["memory"].items()) {
    EXPECT_NO_THROW(shipped_with({"training.data_parallel=" + mode}));
  }
  // Without global_batch_tokens, the plan gives each GPU as many micro-batches as a single GPU would have.
  const ScratchFolder scratch;
  EXPECT_EQ(make_plan(TrainConfig::load(write_tiny_config(scratch.path())), options)["tokens_per_step"],
            4 * 2 * 4 * 64);
  // the vocabulary size is unknown because the corpus is missing
  EXPECT_THROW(make_plan(shipped_with({"model.vocab_size=0"}), options), Error);
}

TEST(Plan, Speed_ComesFromMeasurementOrAssumedMfu) {
  const ScratchFolder scratch;
  const TrainConfig config = shipped_with({});
  PlanOptions options{.gpus = 4, .gpu_memory_gib = 139};
  EXPECT_FALSE(make_plan(config, options).contains("speed"));
  options.speed = {.mfu = 0.4, .peak_tflops = 989, .scaling = 0.95};
  const Json assumed = make_plan(config, options)["speed"];
  EXPECT_DOUBLE_EQ(assumed["tokens_per_second"].get<double>(),
                   4 * 0.95 * 0.4 * 989e12 / flops_per_token(config.model, 4096));
  EXPECT_DOUBLE_EQ(assumed["hours"].get<double>(),
                   static_cast<double>(15ll << 30) / assumed["tokens_per_second"].get<double>() / 3600);

  const auto measured = [&](const std::string& json) {
    std::ofstream(scratch / "bench.json") << json;
    options.speed.measured = scratch / "bench.json";
    return make_plan(config, options)["speed"];
  };
  const Json same = measured(R"([{"model": "other", "tokens_per_second": 1, "batch": 8, "seq_len": 4096, "mfu": 0.9},
    {"model": "lazy-340m-15b", "tokens_per_second": 120000, "batch": 8, "seq_len": 4096, "mfu": 0.35,
     "peak_memory_bytes": 20000000000}])");
  EXPECT_EQ(same["tokens_per_second_per_gpu"], 0.95 * 120000);
  EXPECT_EQ(same["measured_peak_memory_bytes"], 20000000000);
  const Json other =
      measured(R"({"model": "transformer", "tokens_per_second": 1, "batch": 8, "seq_len": 4096, "mfu": 0.4})");
  EXPECT_EQ(other["tokens_per_second"], assumed["tokens_per_second"]);
  EXPECT_THAT(other["source"].get<std::string>(), Names({(scratch / "bench.json").string(), "transformer", 8, 4096}));
  const auto error = [&](const std::string& json) { return error_of([&] { measured(json); }); };
  EXPECT_THAT(error("{"), Names({"bench.json", "JSON"}));
  EXPECT_THAT(error("{}"), Names({"bench.json", "tokens_per_second", 0}));
  EXPECT_THAT(error(R"({"model": "x", "tokens_per_second": 1, "batch": 8, "seq_len": 4096, "mfu": 41})"),
              Names({"bench.json", "mfu", 1, 41}));
  EXPECT_THAT(error(R"({"model": "x", "tokens_per_second": 1, "batch": 8, "seq_len": 4096})"),
              Names({"bench.json", "x", "mfu", "lazy-340m-15b", 8, 4096}));
  EXPECT_THAT(error("[]"), Names({"plan", "bench.json"}));
}

// Returns the size in bytes of all tensors in a safetensors file whose names start with `prefix`.
int64_t tensor_bytes(const fs::path& path, const std::string& prefix) {
  const std::string bytes = read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  int64_t total = 0;
  const auto json = Json::parse(bytes.substr(8, header));
  for (const auto& [name, entry] : json.items()) {
    if (name.starts_with(prefix) && entry.contains("data_offsets")) {
      total += entry["data_offsets"][1].get<int64_t>() - entry["data_offsets"][0].get<int64_t>();
    }
  }
  return total;
}

TEST(Plan, CheckpointSizeAndEpochs_MatchTheRun) {
  const ScratchFolder scratch;
  const TrainConfig config = TrainConfig::load(
      write_tiny_config(scratch.path()),
      {"training.steps=2", "lr_scheduler.warmup_steps=0", "checkpoint.export_dtype=bf16", "model.vocab_size=300"});
  const Json plan = make_plan(config, {.gpus = 1, .gpu_memory_gib = 1});
  train(config, false);
  const fs::path checkpoint = scratch / "run" / "checkpoints" / "step-00000002";
  EXPECT_EQ(plan["checkpoint"]["bytes"], tensor_bytes(checkpoint / "model.safetensors", "model.") +
                                             tensor_bytes(checkpoint / "optimizer.safetensors", "exp_avg"));
  EXPECT_EQ(plan["checkpoint"]["model_bytes"], tensor_bytes(scratch / "run" / "model" / "model.safetensors", "model."));
  const auto run = Json::parse(read_file(scratch / "run" / "run.json"));
  EXPECT_EQ(plan["data"]["tokens"], run["tokens"]);
  EXPECT_EQ(plan["data"]["corpora"][0], run["corpus"]["parts"][0]);
}

TEST(Plan, BenchmarkFile_IsRead) {
  const ScratchFolder scratch;
  const fs::path path = write_tiny_config(scratch.path()), file = scratch / "bench.json";
  const auto bench = [&](const std::string& more) {
    return std::system(
        fmt::format("{} bench train {} --device cpu --batch 4 --length 64 --steps 1 {} --json {} > /dev/null",
                    LAZY_BINARY, path.string(), more, file.string())
            .c_str());
  };
  const TrainConfig config = TrainConfig::load(path, {"training.name=tiny"});
  PlanOptions options{.gpu_memory_gib = 1, .speed = {.measured = file, .peak_tflops = 989}};
  const int64_t vocabulary = Sequences(tiny_corpus(), "train", config.sequences).vocab_size();
  ASSERT_EQ(bench(fmt::format("--set model.vocab_size={}", vocabulary)), 0);
  const Json measured = Json::parse(read_file(file));
  const Json plan = make_plan(config, options);
  EXPECT_EQ(measured["parameters"], plan["parameters"]);
  EXPECT_EQ(plan["speed"]["tokens_per_second"], measured["tokens_per_second"]);
  EXPECT_EQ(plan["speed"]["measured_peak_memory_bytes"], measured["peak_memory_bytes"]);
  // To use a measurement of a different model, the plan needs the utilization of the device, which is unknown on a CPU.
  ASSERT_EQ(bench("--set model.vocab_size=400"), 0);
  EXPECT_THROW(make_plan(config, options), Error);
}

TEST(Plan, DryRun_DoesNotTrain) {
  const ScratchFolder scratch;
  const fs::path path = write_tiny_config(scratch.path());
  const Ended text = run_lazy({path.string(), "--dry-run", "--gpus", "2", "--mfu", "0.4"}, scratch.path());
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, Names({"fp32", "replicate", "zero2", "full_shard", "--mfu"}));
  const Ended json = run_lazy({path.string(), "--dry-run", "--json"}, scratch.path());
  EXPECT_EQ(Json::parse(json.output).at("gpus"), 1);
  EXPECT_FALSE(fs::exists(scratch / "run"));
  // --gpus is only valid together with --dry-run
  EXPECT_EQ(run_lazy({path.string(), "--gpus", "2"}, scratch.path()).exit_code, 2);
}

}  // namespace

TEST(BenchTrain, BenchTrain_ReportsDataAndCommunicationTime) {
  const ScratchFolder scratch;
  const fs::path path = write_tiny_config(scratch.path()), file = scratch / "bench.json";
  const auto vocabulary = [](int64_t size) { return fmt::format("model.vocab_size={}", size); };
  const auto arguments = [&](const std::string& set, const char* sharding) {
    return std::vector<std::string>{
        "train",           path.string(), "--device", "cpu",        "--batch", "4", "--length", "32",
        "--accumulation",  "2",           "--steps",  "2",          "--set",   set, "--corpus", tiny_corpus().string(),
        "--data-parallel", sharding,      "--json",   file.string()};
  };
  const int64_t size = Sequences(tiny_corpus(), "train", {.length = 32}).vocab_size();
  for (const Sharding sharding : kShardings) {
    const auto ended = run_ranks(2, arguments(vocabulary(size), name(sharding)), scratch.path(), "bench");
    for (const Ended& rank : ended) ASSERT_EQ(rank.exit_code, 0) << rank.errors;
    EXPECT_EQ(ended[1].output, "");  // only rank 0 writes output
    const Json result = Json::parse(read_file(file));
    EXPECT_EQ(result["ranks"], 2);
    EXPECT_EQ(result["waited_in_passes_ms"].get<double>() > 0, sharding == Sharding::full_shard);
    double parts = 0;
    for (const char* part : {"data_ms", "forward_ms", "backward_ms", "communication_ms", "optimizer_ms"}) {
      EXPECT_GT(result[part].get<double>(), 0) << part;
      parts += result[part].get<double>();
    }
    EXPECT_LE(parts, result["step_ms"].get<double>());
  }
  const Ended refused = run_lazy(arguments(vocabulary(size - 1), "replicate"), scratch.path(), 0, "bench");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(last_line(refused.errors), Names({tiny_corpus().string(), size, size - 1}));
}

}  // namespace lazy::train
