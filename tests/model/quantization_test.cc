// Tests of quantization by rounding to nearest: against plain loops, against integer matrix products, and against
// models of transformers whose values are rounded in the same way in PyTorch.
#include "model/quantization.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"
#include "support/small_models.h"

namespace lazy {
namespace {

using ops::Rounding;
using ops::RoundingUnit;
using testing::TemporaryFolder;

at::Tensor quantized_random(at::IntArrayRef sizes, uint64_t seed) {
  return at::empty(sizes, at::kFloat).normal_(0, 1, at::detail::createCPUGenerator(seed));
}

TEST(RoundToNearest, Rounding_MatchesLoops) {
  at::Tensor x = quantized_random({5, 7}, 1);
  x.select(0, 3).zero_();
  for (const RoundingUnit unit : {RoundingUnit::tensor, RoundingUnit::token, RoundingUnit::channel}) {
    for (const int64_t bits : {4, 8}) {
      const at::Tensor ours = ops::round_to_nearest(x, {bits, unit});
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 7; ++j) {
          float largest = 0;
          for (int64_t a = 0; a < 5; ++a) {
            for (int64_t b = 0; b < 7; ++b) {
              if ((unit == RoundingUnit::token && a != i) || (unit == RoundingUnit::channel && b != j)) continue;
              largest = std::max(largest, std::abs(x[a][b].item<float>()));
            }
          }
          const float scale = largest > 0 ? largest / static_cast<float>((1 << (bits - 1)) - 1) : 1;
          EXPECT_EQ(ours[i][j].item<float>(), std::nearbyint(x[i][j].item<float>() / scale) * scale);
        }
      }
    }
  }
}

TEST(RoundToNearest, IntegerProducts_MatchProductsOfRoundedMatrices) {
  const at::Tensor x = quantized_random({33, 64}, 1), W = quantized_random({40, 64}, 2);
  for (const RoundingUnit unit : {RoundingUnit::tensor, RoundingUnit::token}) {
    const Rounding how{8, unit};
    const ops::Rounded a = ops::rounded(x, how), b = ops::rounded(W, how);
    ASSERT_TRUE(ops::has_int8_product(a, b));
    const at::Tensor exact =
        at::matmul(ops::round_to_nearest(x, how).to(at::kDouble), ops::round_to_nearest(W, how).to(at::kDouble).t());
    EXPECT_LT((ops::int8_product(a, b) - exact).abs().max().item<double>(), 1e-6 * exact.abs().max().item<double>());
  }
  EXPECT_FALSE(ops::has_int8_product(ops::rounded(x, {8, RoundingUnit::channel}), ops::rounded(W, {8})));
}

TEST(Quantization, Options_AreParsed) {
  const Quantization both = Quantization::parse("w4a4:tensor,kv8:channel", "--quantize");
  EXPECT_EQ(both.weights.bits, 4);
  EXPECT_EQ(both.inputs.unit, RoundingUnit::tensor);
  EXPECT_EQ(both.cache.bits, 8);
  EXPECT_EQ(both.cache.unit, RoundingUnit::channel);
  EXPECT_EQ(Quantization::parse("kv4", "--quantize").cache.unit, RoundingUnit::token);
  for (const char* bad : {"", "w8", "w8a8,w4a4", "kv4:row", "w8a8,"}) {
    EXPECT_THAT(
        error_of([&] { Quantization::parse(bad, "--quantize"); }),
        Names({"--quantize", "w8a8", "w4a4", "kv8", "kv4", ":tensor", ":token", ":channel", fmt::format("'{}'", bad)}));
  }
  LanguageModel retnet(small_mixer("retnet"), 1);
  EXPECT_THAT(error_of([&] { retnet.quantize(Quantization::parse("kv8", "--quantize")); }), Names({"retnet"}));
}

// With one scale per token, the cache contains the same values that are used in a pass without a cache.
TEST(Quantization, CachedPass_MatchesFullPass) {
  LanguageModel model(small_config("elastic"), 3);
  model.quantize(Quantization::parse("w8a8,kv4", "--quantize"));
  const at::NoGradGuard guard;
  const at::Tensor ids =
      at::randint(0, 61, {2, 20}, at::detail::createCPUGenerator(7), at::TensorOptions().dtype(at::kLong));
  const at::Tensor full = model.forward(ids).hidden;
  KVCache cache;
  const at::Tensor first = model.forward(ids.narrow(1, 0, 13), {.cache = &cache}).hidden;
  std::vector<at::Tensor> parts{first};
  for (int64_t t = 13; t < 20; ++t) parts.push_back(model.forward(ids.narrow(1, t, 1), {.cache = &cache}).hidden);
  EXPECT_LT((at::cat(parts, 1) - full).abs().max().item<double>(), 1e-3 * full.abs().max().item<double>());
}

// Python code. Prints the mean negative log-likelihood of a transformers model. Its linear layers and its cache are
// rounded in PyTorch.
constexpr char kInPyTorch[] = R"(
import sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
torch.set_num_threads(1)
folder = sys.argv[1]
ids, out = load_file(folder + "/ids.safetensors")["ids"], {}

def rounded(x, bits, unit):
    flat = x.reshape(-1, x.shape[-1])
    dims = {"tensor": (0, 1), "token": (1,), "channel": (0,)}[unit]
    scale = flat.abs().amax(dims, keepdim=True) / (2 ** (bits - 1) - 1)
    scale = torch.where(scale > 0, scale, 1.0)
    return (torch.round(flat / scale) * scale).reshape(x.shape)

class Rounded(torch.nn.Module):
    def __init__(self, linear, bits, unit):
        super().__init__()
        self.weight = rounded(linear.weight, bits, "tensor" if unit == "tensor" else "token")
        self.bias, self.bits, self.unit = linear.bias, bits, unit
    def forward(self, x):
        return torch.nn.functional.linear(rounded(x, self.bits, self.unit), self.weight, self.bias)

class RoundedCache(DynamicCache):
    def update(self, keys, values, *more, **others):
        def cached(t):  # (batch, heads, length, size): channels are those of all heads
            if unit == "channel":
                return rounded(t.transpose(1, 2).flatten(2), bits, unit).unflatten(2, (t.shape[1], -1)).transpose(1, 2)
            return rounded(t, bits, unit)
        return super().update(cached(keys), cached(values), *more, **others)

for bits in (8, 4):
    for unit in ("tensor", "token", "channel"):
        for what in (f"w{bits}a{bits}", f"kv{bits}"):
            model = AutoModelForCausalLM.from_pretrained(folder + "/ours", dtype=torch.float32,
                                                         attn_implementation="eager").eval()
            cache = None
            with torch.no_grad():
                if what.startswith("w"):
                    for name, module in list(model.named_modules()):
                        if isinstance(module, torch.nn.Linear) and name != "lm_head":
                            parent = model.get_submodule(name.rpartition(".")[0])
                            setattr(parent, name.rpartition(".")[2], Rounded(module, bits, unit))
                else:
                    cache = RoundedCache(config=model.config)
                logits = model(ids[:, :-1], past_key_values=cache, use_cache=cache is not None).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            out[f"{what}:{unit}"] = loss[None]
save_file(out, folder + "/out.safetensors")
)";

TEST(QuantizationSlow, Loss_MatchesSameRoundingInPyTorch) {
  const std::string missing = testing::missing_python_modules("torch, transformers, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "ours");
  ModelConfig c = small_config();
  c.hidden_size = 64;
  c.attention.head_dim = 16;
  c.mlp.intermediate_size = 128;
  // With larger weights, the few values that are rounded differently (because sums are computed in another order) would
  // change the results too much.
  c.init_std = 0.06;
  LanguageModel(c, 3).save(folder / "ours");
  const at::Tensor ids =
      at::randint(0, 61, {1, 257}, at::detail::createCPUGenerator(7), at::TensorOptions().dtype(at::kLong));
  write_safetensors(folder / "ids.safetensors", {{"ids", ids}});
  const auto [status, said] = testing::run_python(folder, kInPyTorch, fmt::format("'{}'", folder.path().string()));
  ASSERT_EQ(status, 0) << said;
  const at::NoGradGuard guard;
  const at::Tensor plain = LanguageModel::load(folder / "ours").loss(ids.narrow(1, 0, 256), ids.narrow(1, 1, 256));
  double largest_change = 0;
  for (const auto& [text, theirs] : read_safetensors(folder / "out.safetensors")) {
    LanguageModel model = LanguageModel::load(folder / "ours");
    model.quantize(Quantization::parse(text, "--quantize"));
    const double ours = model.loss(ids.narrow(1, 0, 256), ids.narrow(1, 1, 256)).item<double>();
    EXPECT_NEAR(std::exp(ours - theirs.item<double>()), 1, 1e-3) << text;
    largest_change = std::max(largest_change, std::abs(ours - plain.item<double>()));
  }
  EXPECT_GT(largest_change, 2e-3);
}

}  // namespace
}  // namespace lazy
