// The families of Llama in transformers' own folders: equal logits, states, attention and gradients, and saved again
// they are the same model to transformers.
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

TEST(FamiliesSlow, AreTransformersAndSavedAgainToo) { testing::expect_folders(testing::kLlamas, 34); }

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

// All that is wrong with a folder in one message.
TEST(FamilyFolder, MissingAndUnexpectedTensorsAreNamed) {
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

// By the names of its own files, whatever the family calls them.
TEST(FamilyFolder, EveryFamilyNamesWhatIsWrong) {
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

// The gradient of every parameter, the biases' and norms' among them, against differences of the loss.
TEST(FamilyGradients, BiasesAndNormsLearn) {
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
