// Tests of model folders: saved models are read back, mismatches are named in the error, and tensor names of other
// programs are accepted.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "model/language_model.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

ModelConfig small_folder_model(const char* kind, bool tied = false) {
  ModelConfig c{.vocab_size = 31,
                .hidden_size = 16,
                .num_layers = 2,
                .max_length = 64,
                .attention = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 8},
                .mlp = {.intermediate_size = 24},
                .tie_embeddings = tied};
  if (std::string(kind) == "lazy") {
    c.attention.normalizer = Normalizer::elastic;
    c.attention.distance_bias_window = 5;
  }
  c.tokenizer_fingerprint = 0x123456789abcdef0;
  return c;
}

std::string load_error(const std::filesystem::path& folder) {
  return error_of([&] { LanguageModel::load(folder); });
}

// Reads the tensors of the folder, applies `edit` to them, and writes them again.
void edit_weights(const std::filesystem::path& folder,
                  const std::function<void(std::map<std::string, at::Tensor>&)>& edit) {
  auto tensors = read_safetensors(folder / "model.safetensors");
  edit(tensors);
  write_safetensors(folder / "model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
}

void edit_config(const std::filesystem::path& folder, const std::function<void(nlohmann::json&)>& edit) {
  auto config = nlohmann::json::parse(testing::read_text(folder / "config.json"));
  edit(config);
  testing::write_text(folder / "config.json", config.dump());
}

TEST(ModelFolder, SavedModel_RoundTrips) {
  for (const char* kind : {"lazy", "transformer"}) {
    for (const bool tied : {false, true}) {
      const TemporaryFolder a, b;
      const LanguageModel model(small_folder_model(kind, tied), 5);
      model.save(a.path());
      const LanguageModel back = LanguageModel::load(a.path());
      EXPECT_EQ(back.config().to_json(), model.config().to_json());
      ASSERT_EQ(back.parameters().size(), model.parameters().size());
      for (size_t i = 0; i < back.parameters().size(); ++i) {
        EXPECT_EQ(back.parameters()[i].first, model.parameters()[i].first);
        EXPECT_TRUE(at::equal(back.parameters()[i].second, model.parameters()[i].second)) << back.parameters()[i].first;
      }
      back.save(b.path());
      for (const char* file : {"config.json", "model.safetensors", "generation_config.json"}) {
        EXPECT_EQ(testing::read_text(a / file), testing::read_text(b / file)) << file;
      }
    }
  }
}

TEST(ModelFolder, ParameterShapes_ListFileTensors) {
  for (const char* kind : {"lazy", "transformer"}) {
    for (const bool tied : {false, true}) {
      const TemporaryFolder folder;
      const LanguageModel model(small_folder_model(kind, tied), 5);
      model.save(folder.path());
      const SafetensorsFile file(folder / "model.safetensors");
      int64_t total = 0;
      const auto shapes = parameter_shapes(model.config());
      for (const ParameterShape& p : shapes) {
        ASSERT_TRUE(file.has(p.name)) << p.name;
        EXPECT_EQ(file.entry(p.name).shape, p.shape) << p.name;
        total += p.count();
      }
      EXPECT_EQ(file.names().size(), shapes.size());
      EXPECT_EQ(count_parameters(model.config()).total, total);
    }
  }
}

TEST(ModelFolder, Bf16Files_KeepOffsetsAndBiasesInFp32) {
  const TemporaryFolder folder;
  const LanguageModel model(small_folder_model("lazy"), 5);
  model.save(folder.path(), "bf16");
  const SafetensorsFile file(folder / "model.safetensors");
  for (const std::string& name : file.names()) {
    const bool wide =
        name.find("softmax_offset") != std::string::npos || name.find("learnable_bias") != std::string::npos;
    EXPECT_EQ(file.entry(name).dtype, wide ? "F32" : "BF16") << name;
  }
  const LanguageModel back = LanguageModel::load(folder.path());
  for (size_t i = 0; i < back.parameters().size(); ++i) {
    const at::Tensor& exact = model.parameters()[i].second;
    EXPECT_LE((back.parameters()[i].second - exact).abs().max().item<double>(), exact.abs().max().item<double>() / 256);
  }
  EXPECT_THROW(model.save(folder.path(), "fp8"), Error);
}

TEST(ModelFolder, ShardedFolders_Load) {
  const TemporaryFolder folder;
  const LanguageModel model(small_folder_model("lazy"), 5);
  model.save(folder.path());
  auto tensors = read_safetensors(folder / "model.safetensors");
  write_safetensors_sharded(folder.path(), "model", NamedTensors(tensors.begin(), tensors.end()), 2000);
  ASSERT_TRUE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  const LanguageModel back = LanguageModel::load(folder.path());
  EXPECT_TRUE(at::equal(back.parameters()[3].second, model.parameters()[3].second));
}

TEST(ModelFolder, OtherTensorNames_AreAccepted) {
  const LanguageModel model(small_folder_model("transformer"), 5);
  const std::map<std::string, std::string> words = {{"embed_tokens", "embeddings"},
                                                    {"input_layernorm", "attn_norm"},
                                                    {"post_attention_layernorm", "mlp_norm"},
                                                    {"self_attn", "attn"}};
  for (const char* prefix : {"", "model.", "transformer."}) {
    for (const bool fla : {false, true}) {
      const TemporaryFolder folder;
      model.save(folder.path());
      edit_weights(folder.path(), [&](auto& tensors) {
        std::map<std::string, at::Tensor> out;
        for (const auto& [stored, tensor] : tensors) {
          std::string name = stored;
          if (name.rfind("model.", 0) == 0) name = prefix + name.substr(6);
          for (const auto& [llama, other] : words) {
            const size_t at = name.find(llama);
            if (fla && at != std::string::npos) name.replace(at, llama.size(), other);
          }
          out[name] = tensor;
        }
        // Old versions of transformers also save this tensor. Loading must ignore it.
        out["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({4});
        tensors = out;
      });
      const LanguageModel back = LanguageModel::load(folder.path());
      EXPECT_TRUE(at::equal(back.parameters()[4].second, model.parameters()[4].second)) << prefix << fla;
    }
  }
}

TEST(ModelFolder, MissingHead_IsTied) {
  const TemporaryFolder folder;
  LanguageModel(small_folder_model("lazy", true), 5).save(folder.path());
  edit_config(folder.path(), [](auto& c) { c["tie_word_embeddings"] = false; });
  EXPECT_TRUE(LanguageModel::load(folder.path()).config().tie_embeddings);
  // A tied head that is stored anyway must equal the embedding.
  edit_config(folder.path(), [](auto& c) { c["tie_word_embeddings"] = true; });
  edit_weights(folder.path(), [](auto& t) { t["lm_head.weight"] = t["model.embeddings.weight"].clone(); });
  EXPECT_EQ(load_error(folder.path()), "");
  edit_weights(folder.path(), [](auto& t) { t["lm_head.weight"].add_(1); });
  EXPECT_THAT(load_error(folder.path()), Names({"lm_head.weight", "model.embeddings.weight"}));
}

// A folder without a head must be rejected. (transformers would initialize the missing head randomly.)
TEST(ModelFolder, LlamaWithoutHead_IsRejected) {
  const TemporaryFolder folder;
  LanguageModel(small_folder_model("llama", true), 5).save(folder.path());
  EXPECT_EQ(load_error(folder.path()), "");
  edit_config(folder.path(), [](auto& c) { c["tie_word_embeddings"] = false; });
  EXPECT_THAT(load_error(folder.path()), Names({"config.json", 1, "lm_head.weight"}));
}

TEST(ModelFolder, LoadError_ListsEveryMismatch) {
  const TemporaryFolder folder;
  LanguageModel(small_folder_model("lazy"), 5).save(folder.path());
  edit_weights(folder.path(), [](auto& t) {
    t.erase("model.norm.weight");
    t.erase("model.layers.1.attn.softmax_offset");
    t["model.layers.0.attn.q_proj.weight"] = at::zeros({16, 17});
    t["model.layers.0.mlp_norm.weight"] = at::zeros({16}, at::kLong);
    t["model.layers.2.attn_norm.weight"] = at::zeros({16});
  });
  const std::string text = load_error(folder.path());
  EXPECT_THAT(text,
              Names({folder.path().string(), 2, "model.norm.weight", "model.layers.1.attn.softmax_offset", 1,
                     "model.layers.2.attn_norm.weight", "model.layers.0.attn.q_proj.weight", std::string("[16, 16]"),
                     std::string("[16, 17]"), "model.layers.0.mlp_norm.weight", "F32", "BF16", "F16", "F64", "I64"}));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(ModelFolder, LoadError_StaysShortForManyMismatches) {
  const TemporaryFolder folder;
  LanguageModel(small_folder_model("lazy"), 5).save(folder.path());
  edit_config(folder.path(), [](auto& c) { c["num_hidden_layers"] = 200; });
  const std::string text = load_error(folder.path());
  EXPECT_THAT(text, Names({2178, 2166}));  // number of missing tensors, and how many of them the message omits
  EXPECT_LT(text.size(), 2000u);
}

TEST(ModelFolder, NonFiniteValues_AreRejected) {
  const TemporaryFolder folder;
  LanguageModel(small_folder_model("transformer"), 5).save(folder.path());
  edit_weights(folder.path(), [](auto& t) { t["model.layers.1.mlp.up_proj.weight"][2][3] = NAN; });
  EXPECT_THAT(load_error(folder.path()), Names({"model.safetensors", "model.layers.1.mlp.up_proj.weight", 1, 384}));
  edit_weights(folder.path(), [](auto& t) { t["model.layers.1.mlp.up_proj.weight"][2][3] = -INFINITY; });
  EXPECT_THAT(load_error(folder.path()), Names({"model.layers.1.mlp.up_proj.weight", 1, 384}));
  // Large finite values are accepted even if their sum exceeds the range of fp32.
  edit_weights(folder.path(), [](auto& t) { t["model.layers.1.mlp.up_proj.weight"].fill_(3e38); });
  EXPECT_EQ(load_error(folder.path()), "");
}

TEST(ModelFolder, DamagedFiles_AreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(load_error(folder.path()), Names({(folder / "config.json").string()}));
  LanguageModel(small_folder_model("lazy"), 5).save(folder.path());
  const std::string whole = testing::read_text(folder / "model.safetensors");
  for (size_t n = 0; n < whole.size(); n += 97) {
    testing::write_text(folder / "model.safetensors", whole.substr(0, n));
    EXPECT_THAT(load_error(folder.path()), Names({"model.safetensors"})) << n;
  }
  std::string huge = whole;
  huge[7] = 0x10;  // the header length is now more than 2^60 bytes
  testing::write_text(folder / "model.safetensors", huge);
  uint64_t length = 0;
  std::memcpy(&length, huge.data(), sizeof length);
  EXPECT_THAT(load_error(folder.path()), Names({"model.safetensors", "header", huge.size() - 8, length}));
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_THAT(load_error(folder.path()), Names({"model.safetensors", "model.safetensors.index.json"}));
  testing::write_text(folder / "pytorch_model.bin", "x");
  EXPECT_THAT(load_error(folder.path()), Names({"pytorch_model.bin", "--from-torch"}));
}

TEST(ModelFolder, WeightsOfOtherShapes_AreRejected) {
  const TemporaryFolder folder;
  LanguageModel(small_folder_model("lazy"), 5).save(folder.path());
  LanguageModel model(small_folder_model("lazy"), 6);
  model.load_weights(folder.path());
  EXPECT_TRUE(
      at::equal(model.parameters()[0].second, LanguageModel(small_folder_model("lazy"), 5).parameters()[0].second));
  ModelConfig other = small_folder_model("lazy");
  other.mlp.intermediate_size = 32;
  LanguageModel wrong(other, 6);
  EXPECT_THROW(wrong.load_weights(folder.path()), Error);
}

}  // namespace
}  // namespace lazy
