// The families of Llama in transformers' own folders: equal logits, and saved again they are the same model to transformers.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"

namespace lazy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// Every shape that differs in what is computed. Sizes are odd on purpose; 150 tokens pass the windows and the length from
// which scaled RoPE differs.
constexpr char kCases[] = R"(
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
torch.set_num_threads(1)
folder = Path(sys.argv[1])
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=77, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
rope = lambda kind, **more: dict(rope_parameters=dict(rope_type=kind, rope_theta=5e4, **more))
llama3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=40)
yarn = rope("yarn", factor=4.0, original_max_position_embeddings=32)
windows = dict(use_sliding_window=True, sliding_window=9)
alternating = ["sliding_attention", "full_attention", "sliding_attention"]
cases = {  # name: (configuration class, what it changes, dtype, shards)
    "llama": (LlamaConfig, dict(tie_word_embeddings=False), "float32", False),
    "llama_head_dim": (LlamaConfig, dict(head_dim=16, num_key_value_heads=6, tie_word_embeddings=True), "float16", False),
    "llama3": (LlamaConfig, dict(tie_word_embeddings=True, **llama3), "bfloat16", True),
    "llama_linear": (LlamaConfig, rope("linear", factor=3.0), "float32", False),
    "llama_dynamic": (LlamaConfig, rope("dynamic", factor=2.0), "float32", False),
    "llama_yarn": (LlamaConfig, yarn, "float32", False),
    "llama_yarn_mscale": (LlamaConfig, rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0,
                                            mscale_all_dim=0.5, beta_fast=16.0, beta_slow=2.0, truncate=False),
                          "float32", False),
    "llama_bias": (LlamaConfig, dict(attention_bias=True), "float32", False),
    "mistral_window": (MistralConfig, dict(sliding_window=7), "float32", False),
    "mistral": (MistralConfig, dict(sliding_window=None, tie_word_embeddings=True), "bfloat16", False),
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=True), "float16", False),
    "qwen2_window": (Qwen2Config, dict(max_window_layers=1, **windows), "float32", True),
    "qwen2_yarn": (Qwen2Config, yarn, "bfloat16", False),
    "qwen3": (Qwen3Config, dict(head_dim=22, tie_word_embeddings=True), "float32", False),
    "qwen3_bias": (Qwen3Config, dict(head_dim=14, attention_bias=True, num_key_value_heads=1), "float32", False),
    "qwen3_layers": (Qwen3Config, dict(head_dim=10, layer_types=alternating, **windows), "bfloat16", True),
}
def logits(where, double):
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return type(model).__name__, (model.double() if double else model)(ids).logits
)";

constexpr char kMake[] = R"(
for n, (name, (kind, changes, dtype, sharded)) in list(enumerate(cases.items())) + list(enumerate(cases.items(), 16)):
    torch.manual_seed(n)
    ids = torch.randint(0, 211, (2, 150))
    model = AutoModelForCausalLM.from_config(kind(**{**shape, **changes}))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.15 if p.dim() == 2 else torch.randn_like(p) * 0.3 + p)
    where = folder / f"{name}-{n // 16}"
    model.to(getattr(torch, dtype)).save_pretrained(where, max_shard_size="60KB" if sharded else "5GB")
    assert (where / "model.safetensors.index.json").exists() == sharded
    save_file({"ids": ids, "fp32": logits(where, False)[1], "fp64": logits(where, True)[1]}, where / "out.safetensors")
)";

constexpr char kReadBack[] = R"(
for where in (w for w in folder.iterdir() if w.is_dir()):
    name, kind = where.name, cases[where.name[:-2]][0]
    out = load_file(where / "out.safetensors")
    ids = out["ids"]
    made, again = logits(where / "ours", False)
    assert made == kind.__name__.replace("Config", "ForCausalLM"), (name, made)
    assert torch.equal(again, out["fp32"]), (name, (again - out["fp32"]).abs().max())
)";

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).square().mean().sqrt().item<double>();
}

// The spelling of transformers 4: rope_theta at the top, rope_scaling with "type" beside it.
nlohmann::json older(nlohmann::json config) {
  nlohmann::json rope = config["rope_parameters"];
  config.erase("rope_parameters");
  config["rope_theta"] = rope["rope_theta"];
  rope.erase("rope_theta");
  rope["type"] = rope["rope_type"];
  rope.erase("rope_type");
  config["rope_scaling"] = rope["type"] == "default" ? nlohmann::json() : rope;
  return config;
}

TEST(Families, EqualLogitsAndSavedAgainEqual) {
  const std::string missing = testing::missing_python_modules("torch, transformers, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const std::string arguments = fmt::format("'{}'", folder.path().string());
  const auto [made, said] = testing::run_python(folder, std::string(kCases) + kMake, arguments);
  ASSERT_EQ(made, 0) << said;
  const at::NoGradGuard guard;
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (!entry.is_directory()) continue;
    ++cases;
    SCOPED_TRACE(entry.path().filename().string());
    LanguageModel model = LanguageModel::load(entry.path());
    const auto theirs = read_safetensors(entry.path() / "out.safetensors");
    const at::Tensor &ids = theirs.at("ids"), &exact = theirs.at("fp64"), &single = theirs.at("fp32");
    const at::Tensor logits = model.logits(model.forward(ids).hidden);
    const double size = exact.square().mean().sqrt().item<double>(), rounding = std::numeric_limits<float>::epsilon() / 2 * size;
    EXPECT_LE(distance(logits, exact), 2 * distance(single, exact) + rounding)
        << "largest difference " << (logits - single).abs().max().item<double>() << ", logits " << size;

    // Token by token and in parts, from the cache. Dynamic RoPE turns keys by the length at which they came.
    if (model.config().rope_scaling.type != "dynamic") {
      KVCache cache;
      std::vector<at::Tensor> parts;
      int64_t begin = 0;
      for (const int64_t count : {60, 84, 1, 1, 4}) {
        parts.push_back(model.logits(model.forward(ids.narrow(1, begin, count), {.cache = &cache}).hidden));
        begin += count;
      }
      EXPECT_LE(distance(at::cat(parts, 1), exact), 2 * distance(single, exact) + rounding);
    }

    const auto config = nlohmann::json::parse(testing::read_text(entry.path() / "config.json"));
    EXPECT_EQ(ModelConfig::from_json(older(config), "older").to_json(), model.config().to_json());
    std::filesystem::create_directory(entry.path() / "ours");
    model.save(entry.path() / "ours");
    EXPECT_EQ(ModelConfig::from_directory(entry.path() / "ours").to_json(), model.config().to_json());
  }
  EXPECT_EQ(cases, 32);
  const auto [status, out] = testing::run_python(folder, std::string(kCases) + kReadBack, arguments);
  EXPECT_EQ(status, 0) << out;
}

ModelConfig biased() {
  ModelConfig c{.vocab_size = 31, .hidden_size = 16, .num_layers = 2, .num_heads = 2, .num_kv_heads = 1, .head_dim = 8,
                .intermediate_size = 24, .max_length = 64};
  c.family = "qwen3";
  c.attention_bias = c.output_bias = c.qk_norm = true;
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
  std::string text;
  try {
    LanguageModel::load(folder.path());
  } catch (const Error& e) {
    text = e.what();
  }
  EXPECT_THAT(text, AllOf(HasSubstr("2 missing: "), HasSubstr("layers.0.self_attn.q_norm.weight"), HasSubstr("layers.1.self_attn.o_proj.bias")));
  EXPECT_THAT(text, AllOf(HasSubstr("1 unexpected: "), HasSubstr("mlp.experts.0.gate_proj.weight")));
  EXPECT_THAT(text, HasSubstr("layers.1.self_attn.k_proj.bias expected [8], found [16]"));
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
