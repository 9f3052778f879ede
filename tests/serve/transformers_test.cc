// Exchanges softmax models of every family with Hugging Face transformers: each program loads the folders that the
// other one has saved. Logits and greedy texts must be equal.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/as_transformers.h"
#include "model/family_cases.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "serve/engine.h"
#include "serve/token_queue.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

// Loads FOLDER/ours with transformers, writes its logits in fp32 and float64 and its greedy text, and saves the model
// as FOLDER/theirs in the format of transformers.
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

std::vector<int64_t> numbers(const at::Tensor& t) {
  return {t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel()};
}

std::shared_ptr<TokenQueue> write(Engine& engine, const std::vector<int64_t>& prompt, int64_t count,
                                  double temperature = 0) {
  auto tokens = std::make_shared<TokenQueue>();
  engine.submit({.prompt = prompt, .sampling = {.temperature = temperature}, .max_tokens = count}, tokens);
  return tokens;
}

std::vector<int64_t> text_of(TokenQueue& queue) {
  std::vector<int64_t> out;
  while (const auto item = queue.next()) out.push_back(item->token.id);
  return out;
}

TEST_P(Transformers, LogitsAndGreedyText_MatchTransformers) {
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

  {
    Engine engine(model, {.max_model_len = 4096});
    std::vector<std::shared_ptr<TokenQueue>> queues;
    // the requests arrive one after the other, so the first decode steps compute a single sequence
    for (const int64_t row : {0, 1, 1, 0, 1}) {
      queues.push_back(write(engine, numbers(ids[row].narrow(0, 0, 7)), 40));
    }
    for (const size_t n : {0, 3}) EXPECT_EQ(text_of(*queues[n]), numbers(theirs.at("text")));
  }

  LanguageModel back = LanguageModel::load(folder / "theirs");
  EXPECT_TRUE(at::equal(back.logits(back.forward(ids).hidden), logits));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Transformers,
                         ::testing::Values(Case{"untied", 4, 16, false, 1e4}, Case{"tied", 4, 16, true, 1e4},
                                           Case{"grouped_tied", 2, 16, true, 5e5},
                                           Case{"one_kv_head_wide", 1, 32, false, 1e4}),
                         [](const auto& info) { return info.param.name; });

// Python code that replaces the function record() of kMakeFolders. It saves the greedy texts that transformers
// generates after a short and after a long prompt from each of two rows. `sure` is the number of tokens before the
// first one whose two largest logits are so close that rounding could swap them.
constexpr char kRecordTexts[] = R"(
def record(where, ids):
    model = reopened(where)
    out = {"ids": ids}
    for count in (7, 2 * ids.shape[1] // 3):
        prompts = ids[:, :count]  # no id is padding
        made = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=24,
                              eos_token_id=None, pad_token_id=0, output_scores=True, return_dict_in_generate=True)
        best = torch.stack(made.scores, 1).topk(2).values  # [row, token, 2]
        close = best[..., 0] - best[..., 1] < 1e-4 * best.abs().amax((1, 2))[:, None]
        for row in range(len(ids)):
            out[f"{row}.{count}.text"] = made.sequences[row, count:].contiguous()
            out[f"{row}.{count}.sure"] = torch.tensor((close[row].tolist() + [True]).index(True))
    save_file(out, where / "out.safetensors")
)";

// Compares our greedy texts with the texts that kRecordTexts has saved. Returns the number of compared tokens.
int64_t expect_texts(const std::filesystem::path& folder) {
  LanguageModel model = LanguageModel::load(folder);
  const auto theirs = read_safetensors(folder / "out.safetensors");
  std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> texts;  // pairs of prompt and text
  for (const auto& [name, text] : theirs) {
    if (!name.ends_with(".text")) continue;
    const int64_t row = name[0] - '0', count = std::stoll(name.substr(2));
    const int64_t sure = theirs.at(name.substr(0, name.size() - 4) + "sure").item<int64_t>();
    texts.emplace_back(numbers(theirs.at("ids")[row].narrow(0, 0, count)), numbers(text.narrow(0, 0, sure)));
  }
  EXPECT_EQ(texts.size(), 4U);
  const auto expect = [&](TokenQueue& queue, const std::vector<int64_t>& text, const char* where) {
    std::vector<int64_t> ours = text_of(queue);
    EXPECT_EQ(ours.size(), 24U) << where;
    ours.resize(text.size());
    EXPECT_EQ(ours, text) << where;
  };
  int64_t compared = 0;
  for (const auto& [prompt, text] : texts) {
    Engine engine(model, {.max_model_len = 4096});
    expect(*write(engine, prompt, 24), text, "alone");
    compared += static_cast<int64_t>(text.size());
  }
  // Every prompt has several chunks. Other requests with random sampling join and leave in the meantime.
  Engine engine(model, {.page_tokens = 4, .chunk = 8, .rows = 4, .max_model_len = 4096});
  std::vector<std::shared_ptr<TokenQueue>> queues, others;
  for (const auto& [prompt, text] : texts) {
    for (const double temperature : {1.0, 0.7}) others.push_back(write(engine, prompt, 24, temperature));
    queues.push_back(write(engine, prompt, 24));
  }
  for (size_t n = 0; n < texts.size(); ++n) expect(*queues[n], texts[n].second, "with others");
  for (const auto& other : others) EXPECT_EQ(text_of(*other).size(), 24U);
  return compared;
}

void expect_greedy_texts(const std::string& script, int folders) {
  const std::string missing = testing::missing_python_modules("torch, transformers, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const auto [made, said] = testing::run_python(folder, std::string(testing::kMakeFolders) + kRecordTexts + script,
                                                fmt::format("'{}'", folder.path().string()));
  ASSERT_EQ(made, 0) << said;
  int found = 0;
  int64_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (!entry.is_directory()) continue;
    ++found;
    SCOPED_TRACE(entry.path().filename().string());
    compared += expect_texts(entry.path());
  }
  EXPECT_EQ(found, folders);
  fmt::print("{} folders, {} tokens compared\n", found, compared);
  // at least 86 tokens per folder (nine of ten generated tokens) must have been compared
  EXPECT_GE(compared, 86 * found);
}

constexpr char kMamba2[] = R"(
from transformers import Mamba2Config
shape = dict(vocab_size=211, hidden_size=64, num_hidden_layers=3, head_dim=16, num_heads=8, state_size=12,
             chunk_size=16, expand=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
for seed in (0, 1):
    make(f"tied-{seed}", Mamba2Config(**shape, n_groups=1, tie_word_embeddings=True), seed=seed)
    make(f"groups-{seed}", Mamba2Config(**shape, n_groups=2), "bfloat16", "60KB", seed=seed)
)";

TEST(GreedyTexts, Llamas) { expect_greedy_texts(testing::kLlamas, 34); }
TEST(GreedyTexts, Gpt2) { expect_greedy_texts(testing::kGpt2, 10); }
TEST(GreedyTexts, Bloom) { expect_greedy_texts(testing::kBloom, 8); }
TEST(GreedyTexts, GptOss) { expect_greedy_texts(testing::kGptOss, 10); }
TEST(GreedyTexts, SmolLm3) { expect_greedy_texts(testing::kSmolLm3s, 6); }
TEST(GreedyTexts, Olmo2) { expect_greedy_texts(testing::kOlmo2s, 4); }
TEST(GreedyTexts, Phi3) { expect_greedy_texts(testing::kPhi3s, 14); }
TEST(GreedyTexts, Gemma2) { expect_greedy_texts(testing::kGemma2s, 6); }
TEST(GreedyTexts, Gemma3) { expect_greedy_texts(testing::kGemma3s, 6); }
TEST(GreedyTexts, Mamba2) { expect_greedy_texts(kMamba2, 4); }

}  // namespace
}  // namespace lazy
