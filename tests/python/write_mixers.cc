// Test program of the parity tests of the mixers.
//   write_mixers FOLDER    writes a model of each kind to FOLDER/NAME/ and its results to FOLDER/NAME.safetensors
// The results are the token ids, the logits, `text` (the tokens that greedy decoding with a cache appends to the first
// ids) and gradient.PARAMETER (the gradient of a weighted sum of the logits).
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <iostream>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"
#include "model/safetensors.h"

namespace {

using lazy::LanguageModel;
using lazy::ModelConfig;

constexpr int64_t kVocabulary = 211, kPrompt = 37, kText = 24;

std::vector<std::pair<std::string, ModelConfig>> models() {
  std::vector<std::pair<std::string, ModelConfig>> out;
  const auto add = [&](const std::string& name, const std::string& mixer) -> ModelConfig& {
    const lazy::MixerKind& kind = *lazy::find_mixer(mixer);
    ModelConfig c{.vocab_size = kVocabulary,
                  .hidden_size = 64,
                  .num_layers = 2,
                  .max_length = 128,
                  .mlp = {.intermediate_size = 96},
                  .norm = {.eps = kind.norm_eps}};
    c.init_std = 0.12;
    c.mixer = kind.defaults;
    c.mixer.type = *lazy::kMixerTypes.find(mixer);
    c.mixer.chunk = 16;  // the test sequence consists of several chunks and an incomplete one
    c.mlp.enabled = kind.mlp;
    return out.emplace_back(name, c).second;
  };
  for (const char* name : {"retnet", "retnet_no_gate"}) {
    ModelConfig& c = add(name, "retnet");
    c.mixer.heads = 2, c.mixer.key_dim = 16, c.mixer.value_dim = 64;
    c.mixer.gate = std::string(name) == "retnet";
  }
  for (const char* name : {"mamba2", "mamba2_two_groups", "mamba2_limited"}) {
    ModelConfig& c = add(name, "mamba2");
    c.mixer.heads = 4, c.mixer.value_dim = 32, c.mixer.state_size = 24;
    c.mixer.groups = std::string(name) == "mamba2_two_groups" ? 2 : 1;
    if (std::string(name) == "mamba2_limited") c.mixer.step_min = 0.01, c.mixer.step_max = 0.05;
  }
  for (const char* name : {"delta_net", "delta_net_no_convolution"}) {
    ModelConfig& c = add(name, "delta_net");
    c.mixer.heads = 2, c.mixer.key_dim = 32, c.mixer.value_dim = 16;
    if (std::string(name) != "delta_net") c.mixer.conv_size = 0, c.mixer.gate = true;
  }
  for (const char* name : {"gated_delta_net", "gated_delta_net_no_gate"}) {
    ModelConfig& c = add(name, "gated_delta_net");
    c.mixer.heads = 3, c.mixer.key_dim = 16, c.mixer.value_dim = 32;
    c.mixer.gate = std::string(name) == "gated_delta_net";
  }
  for (auto& [name, config] : out) lazy::mixer_kind(config).infer_sizes(config);
  return out;
}

at::Tensor greedy(LanguageModel& model, const at::Tensor& ids) {
  const at::NoGradGuard guard;
  lazy::KVCache cache;
  at::Tensor next = ids.narrow(0, 0, 1).narrow(1, 0, kPrompt).contiguous(), text = at::empty({kText}, at::kLong);
  for (int64_t n = 0; n < kText; ++n) {
    const at::Tensor hidden = model.forward(next, {.cache = &cache}).hidden;
    next = model.logits(hidden.narrow(1, hidden.size(1) - 1, 1)).argmax(-1);
    text[n].copy_(next[0][0]);
  }
  return text;
}

void write(const std::filesystem::path& folder) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor ids = at::randint(0, kVocabulary, {2, 75}, generator, at::kLong);
  const at::Tensor weights = at::randn({2, 75, kVocabulary}, generator);
  for (const auto& [name, config] : models()) {
    LanguageModel model(config, 17);
    for (const auto& [parameter, tensor] : model.parameters()) {  // initialize norm weights and biases randomly
      const at::NoGradGuard guard;
      if (tensor.dim() == 1) tensor.add_(at::randn(tensor.sizes(), generator), 0.2);
    }
    std::filesystem::create_directories(folder / name);
    model.save(folder / name);
    std::vector<at::Tensor> wanted;
    for (const auto& item : model.parameters()) wanted.push_back(item.second);
    const at::Tensor logits = model.logits(model.forward(ids).hidden);
    const auto gradients = torch::autograd::grad({(logits * weights).sum()}, wanted);
    lazy::NamedTensors out = {
        {"ids", ids}, {"weights", weights}, {"logits", logits.detach()}, {"text", greedy(model, ids)}};
    for (size_t i = 0; i < wanted.size(); ++i)
      out.emplace_back("gradient." + model.parameters()[i].first, gradients[i]);
    lazy::write_safetensors(folder / (name + ".safetensors"), out);
    std::cout << name << "\n";
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count == 2) {
      write(arguments[1]);
    } else {
      std::cerr << "usage: write_mixers FOLDER\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
