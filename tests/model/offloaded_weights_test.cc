// Tests of offloaded models, whose weights stay in files and are loaded one layer at a time. The results must equal the
// results of a model in memory, and the peak memory must be far below the size of all layers.
#include "model/offloaded_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "support/error_of.h"
#include "support/small_models.h"
#include "temporary_folder.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

// Returns a small model of every family and models with other mixers. Some have tied and some have separate output
// heads.
std::vector<ModelConfig> configs_on_disk() {
  std::vector<ModelConfig> out;
  for (const char* family :
       {"gpt2", "bloom", "gpt_oss", "granite_swa", "smollm3", "olmo2", "phi3", "gemma2", "gemma3_text", "transfo-xl"})
    out.push_back(small_family(family));
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) out.push_back(small_family(family));
  out.back().tie_embeddings = true;
  for (const char* normalizer : {"elastic", "sigmoid"}) out.push_back(small_config(normalizer));
  out.back().positions.kind = PositionKind::alibi;
  for (const char* mixer : {"delta_net", "mamba2"}) out.push_back(small_mixer(mixer));
  return out;
}

at::Tensor ids_of(uint64_t seed, int64_t length = 13) {
  return at::randint(61, {2, length}, at::detail::createCPUGenerator(seed), at::kLong);
}

TEST(OffloadedWeights, EveryModel_MatchesModelInMemory) {
  const at::NoGradGuard guard;
  for (const ModelConfig& config : configs_on_disk()) {
    SCOPED_TRACE(config.kind());
    const TemporaryFolder folder;
    LanguageModel(config, 3).save(folder.path());
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      LanguageModel whole = LanguageModel::load(folder.path()),
                    parts = LanguageModel::load_offloaded(folder.path(), at::kCPU, compute);
      whole.set_compute_dtype(compute);
      EXPECT_TRUE(parts.offloaded());
      EXPECT_FALSE(whole.offloaded());
      for (const uint64_t seed : {1, 2}) {
        const at::Tensor hidden = whole.forward(ids_of(seed)).hidden;
        EXPECT_TRUE(at::equal(parts.forward(ids_of(seed)).hidden, hidden));
        EXPECT_TRUE(at::equal(parts.logits(hidden), whole.logits(hidden)));
        const auto [log_prob, best] = whole.log_likelihood(ids_of(seed), ids_of(seed + 1));
        EXPECT_TRUE(at::equal(parts.log_likelihood(ids_of(seed), ids_of(seed + 1)).first, log_prob));
      }
    }
  }
}

// Decodes token by token with a cache. The weights are in two files.
TEST(OffloadedWeights, CachedDecoding_MatchesModelInMemory) {
  const at::NoGradGuard guard;
  const TemporaryFolder folder;
  LanguageModel whole(small_family("gpt2"), 3);
  NamedTensors tensors;
  whole.save(folder.path());
  for (auto& [name, tensor] : read_safetensors(folder / "model.safetensors")) tensors.emplace_back(name, tensor);
  write_safetensors_sharded(folder.path(), "model", tensors, 4000);
  ASSERT_TRUE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  LanguageModel parts = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
  KVCache ours, theirs;
  for (int64_t begin = 0; begin < 12; begin += begin < 8 ? 4 : 1) {
    const at::Tensor some = ids_of(5).slice(1, begin, begin < 8 ? begin + 4 : begin + 1);
    EXPECT_TRUE(
        at::equal(parts.forward(some, {.cache = &ours}).hidden, whole.forward(some, {.cache = &theirs}).hidden));
  }
}

// Several batches in one call must give the same results as separate calls, also with hooks that read and replace
// activations.
TEST(OffloadedWeights, ForwardEach_MatchesSeparateBatches) {
  const at::NoGradGuard guard;
  for (const ModelConfig& config : configs_on_disk()) {
    SCOPED_TRACE(config.kind());
    const TemporaryFolder folder;
    LanguageModel(config, 4).save(folder.path());
    LanguageModel whole = LanguageModel::load(folder.path()),
                  parts = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
    using Seen = std::map<std::string, std::vector<at::Tensor>>;
    const auto probing = [](Seen& seen) {
      ActivationHooks probes;
      probes.replace("layers.1.residual", [](const std::string&, const at::Tensor& t) { return t * 1.25; });
      probes.read("*put", [&](const std::string& name, const at::Tensor& t) { seen[name].push_back(t.clone()); });
      return probes;
    };
    const std::vector<at::Tensor> batches = {ids_of(1), ids_of(2, 7), ids_of(3)};
    Seen one, all;
    const ActivationHooks of_one = probing(one), of_all = probing(all);
    double done = 0;
    const auto results =
        parts.forward_each(batches, {.return_stats = true, .activation_hooks = &of_all}, [&](double share) {
          EXPECT_GT(share, done);
          done = share;
        });
    EXPECT_EQ(done, 1);
    ASSERT_EQ(results.size(), batches.size());
    for (size_t b = 0; b < batches.size(); ++b) {
      const ForwardResult alone = whole.forward(batches[b], {.return_stats = true, .activation_hooks = &of_one});
      EXPECT_TRUE(at::equal(results[b].hidden, alone.hidden));
      ASSERT_EQ(results[b].stats.size(), alone.stats.size());
      for (size_t layer = 0; layer < alone.stats.size(); ++layer) {
        ASSERT_EQ(results[b].stats[layer].defined(), alone.stats[layer].defined());
        EXPECT_TRUE(!alone.stats[layer].defined() || at::equal(results[b].stats[layer], alone.stats[layer]));
      }
    }
    EXPECT_GE(one.size(), 2U);
    for (const auto& [name, tensors] : one) {
      ASSERT_EQ(all[name].size(), 3U) << name;
      for (size_t b = 0; b < 3; ++b) EXPECT_TRUE(at::equal(all[name][b], tensors[b])) << name;
    }
  }
}

TEST(OffloadedWeights, UnsupportedCalls_AreRejected) {
  const TemporaryFolder folder;
  LanguageModel(small_family("llama"), 3).save(folder.path());
  LanguageModel model = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(error_of([&] { model.forward(ids_of(1)); }), Names({"gradients"}));
  EXPECT_THAT(error_of([&] { model.save(folder.path()); }), Names({"save"}));
  EXPECT_THAT(error_of([&] { model.set_compute_dtype(at::kBFloat16); }), Names({"precision"}));
  const at::NoGradGuard guard;
  KVCache cache;
  EXPECT_THAT(error_of([&] { model.forward_each({ids_of(1)}, {.cache = &cache}); }), Names({"cache"}));
  // Mismatches of the folder are reported when it is opened. Values that are not finite are reported when their layer
  // is loaded.
  auto tensors = read_safetensors(folder / "model.safetensors");
  const std::string damaged = "model.layers.1.self_attn.k_proj.weight";
  tensors.at(damaged)[0][0] = std::nan("");
  write_safetensors(folder / "model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
  LanguageModel broken = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(error_of([&] { broken.forward(ids_of(1)); }),
              Names({"model.safetensors", damaged, 1, tensors.at(damaged).numel()}));
  tensors.erase("model.layers.2.mlp.up_proj.weight");
  write_safetensors(folder / "model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
  EXPECT_THAT(error_of([&] { LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat); }),
              Names({folder.path().string(), 1, "model.layers.2.mlp.up_proj.weight"}));
}

// sanitizers retain freed memory, so memory use cannot be measured
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// Returns a value of /proc/self/status in bytes, such as VmRSS.
double memory_of(const char* what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(what, 0) == 0) return 1024 * std::stod(line.substr(line.find(':') + 1));
  }
  return std::nan("");
}

TEST(OffloadedWeightsAlone, PeakMemory_IsBoundedByLayer) {
  const at::NoGradGuard guard;
  const TemporaryFolder folder;
  ModelConfig config{.vocab_size = 61,
                     .hidden_size = 512,
                     .num_layers = 24,
                     .max_length = 64,
                     .attention = {.num_heads = 8, .num_kv_heads = 8, .head_dim = 64},
                     .mlp = {.intermediate_size = 2048}};
  LanguageModel(config, 3).save(folder.path());
  const double layer = 4.0 * (4 * 512 * 512 + 3 * 512 * 2048), all = 24 * layer;  // size of the fp32 weights in bytes
  const auto grown = [&](const auto& run) {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak memory (VmHWM)
    const double before = memory_of("VmRSS");
    const at::Tensor hidden = run();
    return std::pair{memory_of("VmHWM") - before, hidden};
  };
  const auto [small, ours] = grown([&] {
    LanguageModel model = LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat);
    std::vector<at::Tensor> hidden;
    for (const ForwardResult& result : model.forward_each({ids_of(1), ids_of(2)}, {})) hidden.push_back(result.hidden);
    return at::cat(hidden);
  });
  const auto [large, theirs] = grown([&] {
    LanguageModel model = LanguageModel::load(folder.path());
    return at::cat({model.forward(ids_of(1)).hidden, model.forward(ids_of(2)).hidden});
  });
  EXPECT_TRUE(at::equal(ours, theirs));
  EXPECT_GT(large, 0.9 * all);
  EXPECT_LT(small, 6 * layer)
      << "the limit covers a layer, its data in the file, activations and cached memory; all layers take " << all;
}

#endif

}  // namespace
}  // namespace lazy
