// Tests of RetNet, Mamba2, DeltaNet and Gated DeltaNet models: sizes, initial values, generation, packed documents,
// precision, saved folders.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/mixers/recurrence_cases.h"
#include "model/mixers/registry.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using testing::distance;
using testing::here;
using testing::TemporaryFolder;

const std::vector<std::string> kNames = {"retnet", "mamba2", "delta_net", "gated_delta_net"};

ModelConfig of_kind(const std::string& name, int64_t layers, int64_t hidden) {
  const MixerKind& kind = *find_mixer(name);
  ModelConfig c{.hidden_size = hidden,
                .num_layers = layers,
                .mlp = {.hidden_ratio = kind.hidden_ratio},
                .norm = {.eps = kind.norm_eps}};
  c.mixer = kind.defaults;
  c.mixer.type = *kMixerTypes.find(name);
  c.mlp.enabled = kind.mlp;
  return c;
}

ModelConfig small(const std::string& name) {
  ModelConfig c = of_kind(name, 2, 64);
  c.vocab_size = 97;
  c.mlp.intermediate_size = 80;
  c.max_length = 64;
  c.init_std = 0.12;
  c.mixer.heads = 4;
  c.mixer.key_dim = name == "mamba2" ? 24 : 16;
  c.mixer.value_dim = 32;
  c.mixer.state_size = 24;
  c.mixer.groups = name == "mamba2" ? 2 : 1;
  c.mixer.chunk = 8;
  return c;
}

at::Tensor random_ids(int64_t batch, int64_t length) {
  return here(
      at::randint(0, 97, {batch, length}, at::detail::createCPUGenerator(3), at::TensorOptions().dtype(at::kLong)));
}

at::Tensor hidden_of(LanguageModel& model, const at::Tensor& ids, const ForwardOptions& options = {}) {
  const at::NoGradGuard guard;
  return model.forward(ids, options).hidden;
}

LanguageModel model_here(const ModelConfig& config, uint64_t seed) {
  LanguageModel model(config, seed);
  model.to(ops::test::test_device());
  return model;
}

double millions(int64_t count) { return std::round(static_cast<double>(count) / 1e5) / 10; }

// Tests the parameter counts in millions, with tied and with untied output heads.
TEST(LinearMixers, ParameterCounts_MatchPapers) {
  struct Row {
    const char* what;
    const char* mixer;
    int64_t layers, hidden, key_dim;  // key_dim 0 selects the default of the mixer
    double tied, untied;              // counts in millions; 0: not in the paper's table
  };
  const Row rows[] = {{"RetNet 340M", "retnet", 24, 1024, 0, 347.4, 380.2},
                      {"Mamba2 340M", "mamba2", 48, 1024, 0, 349.6, 382.4},
                      {"DeltaNet 340M", "delta_net", 24, 1024, 0, 341.6, 374.4},
                      {"Gated DeltaNet, 479.5M", "gated_delta_net", 21, 1024, 256, 479.5, 512.3},
                      {"Gated DeltaNet 340M", "gated_delta_net", 21, 768, 256, 322.6, 347.2},
                      {"RetNet 760M", "retnet", 24, 1536, 0, 0, 777.9},
                      {"Mamba2 760M", "mamba2", 48, 1536, 0, 0, 801.2},
                      {"DeltaNet 760M", "delta_net", 24, 1536, 0, 0, 778.7},
                      {"Gated DeltaNet 760M", "gated_delta_net", 21, 1536, 0, 0, 792.8},
                      {"RetNet 1B", "retnet", 24, 2048, 0, 0, 1352},
                      {"Mamba2 1B", "mamba2", 48, 2048, 0, 0, 1372},
                      {"DeltaNet 1B", "delta_net", 24, 2048, 0, 0, 1366},
                      {"Gated DeltaNet 1B", "gated_delta_net", 21, 2048, 0, 0, 1387}};
  for (const Row& row : rows) {
    ModelConfig c = of_kind(row.mixer, row.layers, row.hidden);
    c.mixer.key_dim = row.key_dim;
    mixer_kind(c).infer_sizes(c);
    c.validate();
    const ParameterCount count = count_parameters(c);
    EXPECT_TRUE(row.tied == 0 || row.tied == millions(count.tied)) << row.what << ": " << count.tied;
    const bool whole = row.untied == std::floor(row.untied) && row.untied > 1000;
    EXPECT_EQ(whole ? std::round(static_cast<double>(count.untied) / 1e6) : millions(count.untied), row.untied)
        << row.what;
  }
}

TEST(LinearMixers, Model_HasCountedParameters) {
  for (const std::string& name : kNames) {
    const ModelConfig c = small(name);
    const LanguageModel model(c, 1);
    int64_t sum = 0;
    for (const auto& [parameter, tensor] : model.parameters()) sum += tensor.numel();
    EXPECT_EQ(sum, count_parameters(c).total) << name;
  }
}

TEST(LinearMixers, InitialValues_MatchDefinitions) {
  for (const std::string& name : kNames) {
    ModelConfig c = small(name);
    c.init_std = 0.02;
    const LanguageModel model(c, 5);
    for (const auto& [parameter, tensor] : model.parameters()) {
      const at::Tensor t = tensor.detach();
      const auto ends = [&p = parameter](const std::string& end) {
        return p.size() >= end.size() && p.substr(p.size() - end.size()) == end;
      };
      const double low = t.min().item<double>(), high = t.max().item<double>();
      if (ends("A_log")) {
        EXPECT_GE(low, name == "mamba2" ? 0 : -20) << parameter;
        EXPECT_LE(high, std::log(16)) << parameter;
      } else if (ends("dt_bias")) {
        EXPECT_GE(at::softplus(t).min().item<double>(), 0.99e-3) << parameter;
        EXPECT_LE(at::softplus(t).max().item<double>(), 1.01e-1) << parameter;
      } else if (ends("conv1d.bias")) {
        EXPECT_TRUE(low == 0 && high == 0) << parameter;
      } else if (t.dim() == 1) {  // weights of norms, and the skip coefficients D of Mamba2
        EXPECT_TRUE(low == 1 && high == 1) << parameter;
      } else if (ends("out_proj.weight")) {
        EXPECT_LE(high, 1 / std::sqrt(128 * 2.0)) << parameter;
        EXPECT_NEAR(t.std().item<double>(), 1 / std::sqrt(3 * 128 * 2.0), 0.002) << parameter;
      } else {
        EXPECT_NEAR(t.std().item<double>(), 0.02, 0.003) << parameter;
      }
    }
  }
}

// Covers prefills of odd lengths, followed by single tokens and longer parts. The size of the states must not depend on
// the number of earlier tokens. A copy of the cache must be a snapshot that later tokens do not change.
TEST(LinearMixers, CachedGeneration_MatchesFullForward) {
  for (const std::string& name : kNames) {
    LanguageModel model = model_here(small(name), 7);
    const at::Tensor ids = random_ids(2, 41), whole = hidden_of(model, ids);
    const double scale = whole.abs().max().item<double>();
    for (const int64_t prefill : {1, 2, 8, 21}) {
      KVCache cache;
      at::Tensor first = hidden_of(model, ids.narrow(1, 0, prefill), {.cache = &cache});
      EXPECT_LT(distance(first, whole.narrow(1, 0, prefill)), 2e-5 * scale) << name;
      std::vector<std::vector<int64_t>> sizes;
      for (const auto& layer : cache.states) {
        for (const at::Tensor& t : layer) sizes.push_back(t.sizes().vec());
      }
      EXPECT_FALSE(sizes.empty());
      const KVCache kept = cache;
      for (int64_t t = prefill; t < 30; ++t) {
        const at::Tensor next = hidden_of(model, ids.narrow(1, t, 1), {.cache = &cache});
        EXPECT_LT(distance(next, whole.narrow(1, t, 1)), 2e-5 * scale) << name << ", token " << t;
      }
      EXPECT_LT(distance(hidden_of(model, ids.narrow(1, 30, 11), {.cache = &cache}), whole.narrow(1, 30, 11)),
                2e-5 * scale)
          << name;
      EXPECT_EQ(cache.length, 41);
      size_t i = 0;
      for (const auto& layer : cache.states) {
        for (const at::Tensor& t : layer) EXPECT_EQ(t.sizes().vec(), sizes.at(i++)) << name;
      }
      KVCache again = kept;
      const at::Tensor next = hidden_of(model, ids.narrow(1, prefill, 5), {.cache = &again});
      EXPECT_LT(distance(next, whole.narrow(1, prefill, 5)), 2e-5 * scale)
          << name << ": continued from an earlier copy of the cache";
    }
  }
}

TEST(LinearMixers, PackedDocuments_AreIndependent) {
  const std::vector<int64_t> starts = {0, 2, 3, 19, 40};
  for (const std::string& name : kNames) {
    LanguageModel model = model_here(small(name), 9);
    const at::Tensor ids = random_ids(1, 40);
    PackedSequences packed;
    packed.ids = ids.squeeze(0);
    // cu_seqlens is in CPU memory, as in evaluation.
    packed.cu_seqlens_q = packed.cu_seqlens_k = at::tensor(starts, at::kLong).to(at::kInt);
    std::vector<at::Tensor> places;
    for (size_t i = 0; i + 1 < starts.size(); ++i) places.push_back(at::arange(starts[i + 1] - starts[i], at::kLong));
    packed.positions = here(at::cat(places));
    packed.longest = 21;
    const at::Tensor all = hidden_of(model, ids, {.packed = &packed});
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      const at::Tensor alone = hidden_of(model, ids.slice(1, starts[i], starts[i + 1]));
      EXPECT_LT(distance(all.slice(1, starts[i], starts[i + 1]), alone), 1e-4) << name << ", document " << i;
    }
  }
}

// The chunk size affects only the speed, so the results must not change.
TEST(LinearMixers, ChunkSize_DoesNotChangeResults) {
  for (const std::string& name : kNames) {
    ModelConfig c = small(name);
    LanguageModel model = model_here(c, 11);
    const at::Tensor ids = random_ids(2, 45), whole = hidden_of(model, ids);
    for (const int64_t chunk : {1, 45, 64}) {
      c.mixer.chunk = chunk;
      LanguageModel other = model_here(c, 11);
      EXPECT_LT(distance(hidden_of(other, ids), whole), 2e-5 * whole.abs().max().item<double>())
          << name << ", chunk " << chunk;
    }
  }
}

// bf16 changes the loss only within its precision, and the gradients of all parameters are finite.
TEST(LinearMixers, Bf16_IsCloseToFp32) {
  for (const std::string& name : kNames) {
    LanguageModel model = model_here(small(name), 13);
    const at::Tensor ids = random_ids(2, 40), labels = random_ids(2, 40).roll(-1, 1);
    const double exact = model.loss(ids, labels).item<double>();
    model.set_compute_dtype(at::kBFloat16);
    const at::Tensor loss = model.loss(ids, labels);
    EXPECT_NEAR(loss.item<double>(), exact, 0.01 * exact) << name;
    std::vector<at::Tensor> wanted;
    for (const auto& item : model.parameters()) wanted.push_back(item.second);
    const auto gradients = torch::autograd::grad({loss}, wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(gradients[i].scalar_type(), at::kFloat);
      EXPECT_TRUE(gradients[i].isfinite().all().item<bool>() && gradients[i].abs().max().item<double>() > 0)
          << name << " " << model.parameters()[i].first;
    }
  }
}

// Recomputing layers in the backward pass gives bitwise the same results.
TEST(LinearMixers, Checkpointing_IsBitwiseEqual) {
  for (const std::string& name : kNames) {
    LanguageModel model = model_here(small(name), 15);
    const at::Tensor ids = random_ids(2, 20), labels = random_ids(2, 20).roll(-1, 1);
    std::vector<at::Tensor> wanted;
    for (const auto& item : model.parameters()) wanted.push_back(item.second);
    const auto gradients = [&](Checkpointing checkpointing) {
      model.set_checkpointing(checkpointing);
      for (const at::Tensor& t : wanted) t.mutable_grad() = at::Tensor();
      model.loss(ids, labels).backward();
      std::vector<at::Tensor> out;
      for (const at::Tensor& t : wanted) out.push_back(t.grad().clone());
      return out;
    };
    const auto plain = gradients(Checkpointing::none), full = gradients(Checkpointing::full),
               half = gradients(Checkpointing::attention);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(plain[i].equal(full[i]) && plain[i].equal(half[i])) << name << " " << model.parameters()[i].first;
    }
  }
}

TEST(LinearMixers, SavedFolder_RoundTrips) {
  for (const std::string& name : kNames) {
    const TemporaryFolder folder;
    LanguageModel model = model_here(small(name), 17);
    model.save(folder.path());
    LanguageModel back = LanguageModel::load(folder.path());
    back.to(ops::test::test_device());
    const MixerConfig &a = model.config().mixer, &b = back.config().mixer;
    EXPECT_EQ(std::tie(a.heads, a.key_dim, a.value_dim, a.conv_size, a.gate, a.groups),
              std::tie(b.heads, b.key_dim, b.value_dim, b.conv_size, b.gate, b.groups))
        << name;
    const at::Tensor ids = random_ids(1, 20), expected = hidden_of(model, ids);
    EXPECT_LT(distance(hidden_of(back, ids), expected), 2e-5 * expected.abs().max().item<double>()) << name;
    model.save(folder.path(), "bf16");
    for (const auto& [parameter, tensor] : read_safetensors(folder / "model.safetensors")) {
      const bool decay = parameter.find("A_log") != std::string::npos ||
                         parameter.find("dt_bias") != std::string::npos ||
                         parameter.find("mixer.D") != std::string::npos;
      EXPECT_EQ(tensor.scalar_type(), decay ? at::kFloat : at::kBFloat16) << parameter;
    }
  }
}

TEST(LinearMixers, WeightDecay_ExcludesNormsBiasesAndDecays) {
  const LanguageModel gated(small("gated_delta_net"), 1), mamba2(small("mamba2"), 1);
  for (const char* name : {"attn.A_log", "attn.dt_bias", "attn.o_norm.weight", "attn_norm.weight"}) {
    EXPECT_FALSE(gated.decays(std::string("model.layers.0.") + name)) << name;
  }
  for (const char* name : {"D", "A_log", "dt_bias", "conv1d.bias", "norm.weight"}) {
    EXPECT_FALSE(mamba2.decays(std::string("backbone.layers.0.mixer.") + name)) << name;
  }
  for (const char* name : {"attn.q_conv1d.weight", "attn.a_proj.weight"}) {
    EXPECT_TRUE(gated.decays(std::string("model.layers.0.") + name)) << name;
  }
  EXPECT_TRUE(mamba2.decays("backbone.layers.0.mixer.in_proj.weight"));
  EXPECT_THROW(mamba2.decays("backbone.layers.0.mixer.in_proj"), Error);
}

// Tests configurations in the form in which flash-linear-attention (FLA) writes them.
TEST(LinearMixers, FlaConfigs_AreRead) {
  const auto read = [](const std::string& own) {
    const std::string text = R"({"vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 2, )" + own + "}";
    return ModelConfig::from_json(nlohmann::json::parse(text), "config.json");
  };
  const ModelConfig retnet =
      read(R"("model_type": "retnet", "num_heads": 8, "expand_k": 1.0, "expand_v": 2.0, "num_kv_heads": null)");
  EXPECT_EQ(retnet.mixer.key_dim, 256);
  EXPECT_EQ(retnet.mixer.value_dim, 512);
  EXPECT_EQ(retnet.intermediate(), 2816);
  const ModelConfig mamba2 =
      read(R"("model_type": "mamba2", "head_dim": 64, "expand": 2, "state_size": 128, "n_groups": 1)");
  EXPECT_EQ(mamba2.mixer.heads, 64);
  EXPECT_EQ(mamba2.norm.eps, 1e-5);
  const ModelConfig delta =
      read(R"("model_type": "delta_net", "num_heads": 16, "expand_k": 1, "expand_v": 1, "qk_norm": "l2")");
  EXPECT_EQ(delta.mixer.key_dim, 128);
  EXPECT_FALSE(delta.mixer.gate);
  const ModelConfig gated = read(R"("model_type": "gated_deltanet", "num_heads": 6, "head_dim": 256, "expand_v": 2)");
  EXPECT_EQ(gated.mixer.value_dim, 512);
  const auto message = [&](const std::string& own) { return error_of([&] { read(own); }); };
  EXPECT_THAT(message(R"("model_type": "retnet", "num_heads": 7)"),
              Names({"config.json", "num_heads", 2048, "expand_k", 7}));
  EXPECT_THAT(message(R"("model_type": "gated_deltanet", "num_heads": 6, "num_v_heads": 12)"),
              Names({"num_v_heads", "num_heads", 6, 12}));
  EXPECT_THAT(message(R"("model_type": "gated_deltanet", "head_dim": 256, "expand_v": 0.3)"),
              Names({"expand_v", 256, "0.3"}));
  EXPECT_THAT(message(R"("model_type": "delta_net", "qk_norm": "sum")"), Names({"qk_norm", "l2", "sum"}));
  EXPECT_THAT(message(R"("model_type": "mamba2", "num_heads": 3)"),
              Names({"num_heads", 64, "expand", "hidden_size", "head_dim", 3}));
  EXPECT_THAT(message(R"("model_type": "mamba2", "rmsnorm": false)"), Names({"rmsnorm", "false"}));
}

TEST(LinearMixers, ConfigErrors_NameField) {
  const auto message = [](const std::string& name, auto change) {
    ModelConfig c = small(name);
    change(c.mixer);
    return error_of([&] { c.validate(); });
  };
  EXPECT_THAT(message("retnet", [](MixerConfig& x) { x.key_dim = 15; }), Names({"mixer.key_dim", 15}));
  EXPECT_THAT(message("retnet", [](MixerConfig& x) { x.conv_size = 4; }), Names({"mixer.conv_size", 0, "retnet", 4}));
  EXPECT_THAT(message("mamba2", [](MixerConfig& x) { x.groups = 3; }),
              IsMessage("model: mixer.groups: expected a divisor of heads (4), found 3"));
  EXPECT_THAT(message("mamba2", [](MixerConfig& x) { x.conv_size = 0; }), Names({"mixer.conv_size", 1, "mamba2", 0}));
  EXPECT_THAT(message("mamba2", [](MixerConfig& x) { x.heads = 3, x.groups = 1; }),
              Names({"mixer.heads", "value_dim", "hidden_size", 64, 3, 32}));
  EXPECT_THAT(message("delta_net", [](MixerConfig& x) { x.chunk = 65; }),
              Names({"mixer.chunk", 1, "max_position_embeddings", 64, 65}));
}

}  // namespace
}  // namespace lazy
