// Hugging Face transformers reads our softmax models and we read its: equal logits, equal greedy text.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/language_model.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "serve/token_queue.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

// Loads FOLDER/ours with transformers; writes its logits in fp32 and float64 and its greedy text, and saves the model
// again as FOLDER/theirs, in transformers' own spelling.
constexpr char kScript[] = R"(
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
folder = Path(sys.argv[1])
ids = load_file(folder / "ids.safetensors")["ids"]
model = AutoModelForCausalLM.from_pretrained(folder / "ours", dtype=torch.float32, attn_implementation="eager").eval()
assert type(model).__name__ == "LlamaForCausalLM", type(model)
assert model.config.head_dim == model.model.layers[0].self_attn.head_dim
with torch.no_grad():
    out = {"fp32": model(ids).logits}
    text = model.generate(ids[:1, :7], do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0)
    out["text"] = text[0, 7:].contiguous()
    model.save_pretrained(folder / "theirs")
    out["fp64"] = model.double()(ids).logits
save_file(out, folder / "out.safetensors")
)";

struct Case {
  const char* name;
  int64_t kv_heads, head_dim;
  bool tied;
  double rope_base;
};

class Transformers : public ::testing::TestWithParam<Case> {};

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).square().mean().sqrt().item<double>();
}

TEST_P(Transformers, EqualLogitsAndEqualGreedyText) {
  const std::string missing = testing::missing_python_modules("torch, transformers, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const Case& c = GetParam();
  ModelConfig config{.vocab_size = 211,
                     .hidden_size = 64,
                     .num_layers = 3,
                     .max_length = 128,
                     .attention = {.num_heads = 4, .num_kv_heads = c.kv_heads, .head_dim = c.head_dim},
                     .positions = {.rope_base = c.rope_base},
                     .mlp = {.intermediate_size = 96},
                     .tie_embeddings = c.tied};
  config.init_std = 0.12;
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "ours");
  LanguageModel model(config, 17);
  model.save(folder / "ours");
  const at::Tensor ids =
      at::randint(0, 211, {2, 100}, at::detail::createCPUGenerator(1), at::TensorOptions().dtype(at::kLong));
  write_safetensors(folder / "ids.safetensors", {{"ids", ids}});
  const auto [status, out] = testing::run_python(folder, kScript, fmt::format("'{}'", folder.path().string()));
  ASSERT_EQ(status, 0) << out;
  const auto theirs = read_safetensors(folder / "out.safetensors");

  const at::NoGradGuard guard;
  const at::Tensor logits = model.logits(model.forward(ids).hidden);
  const at::Tensor &exact = theirs.at("fp64"), &single = theirs.at("fp32");
  const double largest = (logits - single).abs().max().item<double>();
  fmt::print(
      "{}: maximum difference of logits {:.2e} (logits up to {:.2f}); rms from float64: ours {:.2e}, transformers' "
      "fp32 {:.2e}\n",
      c.name, largest, exact.abs().max().item<double>(), distance(logits, exact), distance(single, exact));
  const double rounding = std::numeric_limits<float>::epsilon() / 2 * exact.square().mean().sqrt().item<double>();
  EXPECT_LE(distance(logits, exact), 2 * distance(single, exact) + rounding);

  const auto written = [&](Engine& engine, int64_t row) {
    const int64_t* prompt = ids[row].const_data_ptr<int64_t>();
    auto tokens = std::make_shared<TokenQueue>();
    engine.submit({.prompt = {prompt, prompt + 7}, .sampling = {.temperature = 0}, .max_tokens = 40}, tokens);
    return tokens;
  };
  const at::Tensor& text = theirs.at("text");
  const std::vector<int64_t> expected(text.const_data_ptr<int64_t>(), text.const_data_ptr<int64_t>() + text.numel());
  {
    Engine engine(model, {});
    std::vector<std::shared_ptr<TokenQueue>> queues;
    for (const int64_t row : {0, 1, 1, 0, 1}) queues.push_back(written(engine, row));  // alone in the first steps
    for (const size_t n : {0, 3}) {
      std::vector<int64_t> text;
      while (const auto item = queues[n]->next()) text.push_back(item->token.id);
      EXPECT_EQ(text, expected);
    }
  }

  LanguageModel back = LanguageModel::load(folder / "theirs");
  EXPECT_TRUE(at::equal(back.logits(back.forward(ids).hidden), logits));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Transformers,
                         ::testing::Values(Case{"untied", 4, 16, false, 1e4}, Case{"tied", 4, 16, true, 1e4},
                                           Case{"grouped_tied", 2, 16, true, 5e5},
                                           Case{"one_kv_head_wide", 1, 32, false, 1e4}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lazy
