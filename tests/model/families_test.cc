// Tests model folders of the Llama families that transformers has written: our logits, hidden states, attention weights
// and gradients must match, and transformers must read our saved folder as the same model.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "family_cases.h"
#include "family_folders.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

TEST(FamiliesSlow, Folders_MatchTransformersAndRoundTrip) { testing::expect_folders(testing::kLlamas, 34); }

ModelConfig biased() {
  ModelConfig c{.vocab_size = 31,
                .hidden_size = 16,
                .num_layers = 2,
                .max_length = 64,
                .attention = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 8},
                .mlp = {.intermediate_size = 24}};
  c.family = ModelFamily::qwen3;
  c.attention.qkv_bias = c.attention.output_bias = c.attention.qk_norm = true;
  return c;
}

// The error message of a folder lists all of its mismatches.
TEST(FamilyFolder, LoadError_ListsMissingAndUnexpectedTensors) {
  const TemporaryFolder folder;
  LanguageModel(biased(), 5).save(folder.path());
  auto tensors = read_safetensors(folder / "model.safetensors");
  tensors.erase("model.layers.0.self_attn.q_norm.weight");
  tensors.erase("model.layers.1.self_attn.o_proj.bias");
  tensors["model.layers.1.self_attn.k_proj.bias"] = at::zeros({16});
  tensors["model.layers.0.mlp.experts.0.gate_proj.weight"] = at::zeros({2, 2});
  write_safetensors(folder / "model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
  EXPECT_THAT(error_of([&] { LanguageModel::load(folder.path()); }),
              IsMessage(fmt::format("checkpoint: {}: tensors do not fit config.json: "
                                    "2 missing: model.layers.0.self_attn.q_norm.weight, "
                                    "model.layers.1.self_attn.o_proj.bias; "
                                    "1 unexpected: model.layers.0.mlp.experts.0.gate_proj.weight; "
                                    "1 of the wrong shape: model.layers.1.self_attn.k_proj.bias expected [8], "
                                    "found [16]",
                                    folder.path().string())));
}

// The message must use the tensor names of the folder's files, which differ between families.
TEST(FamilyFolder, LoadError_NamesTensorsOfEveryFamily) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "gpt2", "bloom", "gpt_oss", "granite_swa", "smollm3",
                             "olmo2", "phi3", "gemma2", "gemma3_text", "transfo-xl"}) {
    SCOPED_TRACE(family);
    const TemporaryFolder folder;
    LanguageModel(small_family(family), 5).save(folder.path());
    auto tensors = read_safetensors(folder / "model.safetensors");
    std::vector<std::string> of_layer;
    for (const auto& [name, tensor] : tensors) {
      if (name.find(".1.") != std::string::npos) of_layer.push_back(name);
    }
    ASSERT_GE(of_layer.size(), 6U);
    const std::string shape = c10::str(tensors.at(of_layer.back()).sizes());
    tensors.erase(of_layer.front());
    tensors[of_layer.back()] = at::zeros({3, 5});
    tensors[of_layer.back() + ".more"] = at::zeros({3, 5});
    write_safetensors(folder / "model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
    const std::string text = error_of([&] { LanguageModel::load(folder.path()); });
    EXPECT_THAT(text,
                Names({1, of_layer.front(), of_layer.back() + ".more", of_layer.back(), shape, std::string("[3, 5]")}));
    EXPECT_EQ(error_of([&] { LanguageModel::load_offloaded(folder.path(), at::kCPU, at::kFloat); }), text);
  }
}

// Compares the gradient of every parameter, including biases and norms, with finite differences of the loss.
TEST(FamilyGradients, BiasesAndNorms_MatchFiniteDifferences) {
  LanguageModel model(biased(), 5);
  {
    const at::NoGradGuard guard;
    at::Generator generator = at::detail::createCPUGenerator(3);
    for (const auto& [name, p] : model.parameters()) p.add_(at::empty_like(p).normal_(0, 0.3, generator));
  }
  const auto options = at::TensorOptions().dtype(at::kLong);
  const at::Tensor ids = at::randint(0, 31, {2, 12}, at::detail::createCPUGenerator(1), options);
  const at::Tensor labels = at::randint(0, 31, {2, 12}, at::detail::createCPUGenerator(2), options);
  model.loss(ids, labels).backward();
  for (const auto& [name, p] : model.parameters()) {
    ASSERT_TRUE(p.grad().defined()) << name;
    if (p.dim() != 1) continue;
    const at::NoGradGuard guard;
    const double step = 1e-2, slope = p.grad()[3].item<double>();
    const auto loss_at = [&](double change) {
      p[3] += change;
      const double value = model.loss(ids, labels).item<double>();
      p[3] -= change;
      return value;
    };
    EXPECT_NEAR((loss_at(step) - loss_at(-step)) / (2 * step), slope, 2e-3 + 0.02 * std::abs(slope)) << name;
  }
}

}  // namespace
}  // namespace lazy
