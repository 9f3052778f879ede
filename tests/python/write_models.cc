// The C++ side of the parity tests of LazyForCausalLM and of the tests of config.json.
//   write_models write FOLDER        writes models of several kinds as FOLDER/NAME/, and ids, logits and text as
//                                    FOLDER/NAME.safetensors
//   write_models read MODEL IDS OUT  writes the logits of a model folder for `ids` of the file IDS
//   write_models serve               does the same for every line "MODEL<tab>IDS<tab>OUT" of standard input and answers
//                                    with one line: "logits", "refused MESSAGE" (a lazy::Error) or "failed MESSAGE"
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <iostream>

#include "core/error.h"
#include "core/text.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "model/safetensors.h"

namespace {

using lazy::LanguageModel;
using lazy::ModelConfig;

constexpr int64_t kVocabulary = 211, kPrompt = 7, kText = 24;

at::Tensor logits(LanguageModel& model, const at::Tensor& ids) { return model.logits(model.forward(ids).hidden); }

// Continues the first `kPrompt` ids of the first row by greedy decoding with the KV cache.
at::Tensor greedy(LanguageModel& model, const at::Tensor& ids) {
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
  ModelConfig base{.vocab_size = kVocabulary,
                   .hidden_size = 64,
                   .num_layers = 3,
                   .max_length = 128,
                   .attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 16},
                   .positions = {.rope_base = 1.5e5},
                   .mlp = {.intermediate_size = 96}};
  base.init_std = 0.12;
  base.attention.normalizer = lazy::Normalizer::elastic;
  base.attention.distance_bias_window = 40;
  base.attention.distance_bias_init_std = 0.5;
  std::vector<std::pair<std::string, ModelConfig>> models = {{"lazy", base}};
  const auto add = [&](const char* name) -> ModelConfig& { return models.emplace_back(name, base).second; };
  {
    ModelConfig& grouped = add("grouped_tied");
    grouped.attention.num_kv_heads = 2;
    grouped.tie_embeddings = true;
    grouped.positions.rope_base = 1e4;
  }
  {
    ModelConfig& constant = add("constant_offset_fixed");
    constant.attention.offset = lazy::OffsetKind::constant;
    constant.attention.offset_trainable = false;
    constant.attention.offset_init = -0.01;
  }
  {
    ModelConfig& window = add("window_no_bias");
    window.attention.distance_bias_window = 0;
    window.attention.window = 9;
  }
  {
    ModelConfig& softmax = add("softmax_with_bias");
    softmax.attention.normalizer = lazy::Normalizer::softmax;
    softmax.attention.num_kv_heads = 1;
    softmax.attention.head_dim = 32;
  }
  {
    ModelConfig& gated = add("gated_off_by_one");
    gated.attention.normalizer = lazy::Normalizer::softmax_sink;
    gated.attention.sink_trainable = false;
    gated.attention.gate = lazy::GateKind::element;
    gated.attention.num_kv_heads = 2;
  }
  const at::Tensor ids = at::randint(0, kVocabulary, {2, 100}, at::detail::createCPUGenerator(1), at::kLong);
  for (const auto& [name, config] : models) {
    LanguageModel model(config, 17);
    std::filesystem::create_directories(folder / name);
    model.save(folder / name);
    lazy::write_safetensors(folder / (name + ".safetensors"),
                            {{"ids", ids}, {"logits", logits(model, ids)}, {"text", greedy(model, ids)}});
    std::cout << name << "\n";
  }
}

void read(const char* folder, const char* ids, const char* out) {
  LanguageModel model = LanguageModel::load(folder);
  lazy::write_safetensors(out, {{"logits", logits(model, lazy::read_safetensors(ids).at("ids"))}});
}

void serve() {
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer = "logits";
    try {
      const std::vector<std::string> files = lazy::split(line, '\t');
      read(files.at(0).c_str(), files.at(1).c_str(), files.at(2).c_str());
    } catch (const lazy::Error& error) {
      answer = std::string("refused ") + error.what();
    } catch (const std::exception& error) {
      answer = std::string("failed ") + error.what();
    }
    for (size_t at = 0; (at = answer.find('\n', at)) != std::string::npos;) answer.replace(at, 1, "\\n");
    std::cout << answer << std::endl;
  }
}

}  // namespace

int main(int count, char** arguments) {
  const at::NoGradGuard guard;
  const std::string mode = count > 1 ? arguments[1] : "";
  try {
    if (mode == "write" && count == 3) {
      write(arguments[2]);
    } else if (mode == "read" && count == 5) {
      read(arguments[2], arguments[3], arguments[4]);
    } else if (mode == "serve" && count == 2) {
      serve();
    } else {
      std::cerr << "usage: write_models write FOLDER | read MODEL IDS OUT | serve\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
