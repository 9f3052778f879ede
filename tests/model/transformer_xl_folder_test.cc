// Tests of folders in Transformer-XL's layout against the published equations: log-probabilities, all hidden states,
// attention matrices and gradients, with memory over several segments. Errors of a folder are named.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <numeric>
#include <ostream>

#include "as_transformers.h"
#include "model/blocks/adaptive_tables.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/recurrence_checks.h"
#include "model/published_transformer_xl.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace lazy {
namespace {

using nlohmann::json;
using testing::PublishedTransformerXl;
using testing::TemporaryFolder;
using Tensors = PublishedTransformerXl::Tensors;

// All sizes are odd numbers, except where this is not possible.
json published_config(const json& changes = {}) {
  json c = {{"model_type", "transfo-xl"},
            {"architectures", {"TransfoXLLMHeadModel"}},
            {"vocab_size", 97},
            {"cutoffs", {11, 30, 70}},
            {"d_model", 30},
            {"d_embed", 22},
            {"n_head", 3},
            {"d_head", 7},
            {"d_inner", 41},
            {"div_val", 2},
            {"pre_lnorm", false},
            {"n_layer", 3},
            {"mem_len", 9},
            {"clamp_len", 12},
            {"same_length", true},
            {"attn_type", 0},
            {"untie_r", true},
            {"layer_norm_epsilon", 1e-5},
            {"eos_token_id", 0},
            {"tie_projs", {false, true, true, true}},
            {"tie_word_embeddings", true}};
  if (!changes.is_null()) c.update(changes);
  return c;
}

// Returns random values for all tensors of the model class in transformers 4. Tied tensors are included only once.
Tensors random_tensors(const json& c, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  Tensors out;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, double mean = 0) {
    const double spread = shape.size() > 1 ? 0.2 : 0.3;
    out[name] = at::randn(shape, generator, at::TensorOptions()) * spread + mean;
  };
  const int64_t d = c["d_model"], e = c["d_embed"], inner = c["d_inner"], heads = c["n_head"], dim = c["d_head"],
                divisor = c["div_val"];
  std::vector<int64_t> ends = c["cutoffs"];
  ends.push_back(c["vocab_size"]);
  const bool projected = divisor > 1 || d != e;
  int64_t width = e, begin = 0;
  for (size_t n = 0; n < ends.size(); ++n) {
    const std::string number = std::to_string(n);
    const int64_t rows = divisor == 1 ? ends.back() : ends[n] - begin;
    if (divisor > 1 || n == 0) {
      add("transformer.word_emb.emb_layers." + number + ".weight", {rows, width});
      if (projected) add("transformer.word_emb.emb_projs." + number, {d, width});
      if (!c["tie_word_embeddings"]) add("crit.out_layers." + number + ".weight", {rows, width});
      add("crit.out_layers." + number + ".bias", {rows});
    }
    if (projected && !c["tie_projs"][n]) add("crit.out_projs." + number, {d, width});
    begin = ends[n];
    width /= divisor;
  }
  if (ends.size() > 1) {
    add("crit.cluster_weight", {static_cast<int64_t>(ends.size()) - 1, e});
    add("crit.cluster_bias", {static_cast<int64_t>(ends.size()) - 1});
  }
  for (const char* bias : {"r_w_bias", "r_r_bias"}) {
    if (!c["untie_r"]) add(std::string("transformer.") + bias, {heads, dim});
  }
  for (int64_t n = 0; n < c["n_layer"]; ++n) {
    const std::string at = "transformer.layers." + std::to_string(n) + ".";
    add(at + "dec_attn.qkv_net.weight", {3 * heads * dim, d});
    add(at + "dec_attn.o_net.weight", {d, heads * dim});
    add(at + "dec_attn.r_net.weight", {heads * dim, d});
    for (const char* bias : {"r_w_bias", "r_r_bias"}) {
      if (c["untie_r"]) add(at + "dec_attn." + bias, {heads, dim});
    }
    for (const char* part : {"dec_attn.", "pos_ff."}) {
      add(at + part + "layer_norm.weight", {d}, 1);
      add(at + part + "layer_norm.bias", {d});
    }
    add(at + "pos_ff.CoreNet.0.weight", {inner, d});
    add(at + "pos_ff.CoreNet.0.bias", {inner});
    add(at + "pos_ff.CoreNet.3.weight", {d, inner});
    add(at + "pos_ff.CoreNet.3.bias", {d});
  }
  return out;
}

void write_folder(const std::filesystem::path& folder, const json& config, const Tensors& tensors,
                  uint64_t most_bytes = uint64_t{1} << 30) {
  std::filesystem::create_directories(folder);
  testing::write_text(folder / "config.json", config.dump());
  write_safetensors_sharded(folder, "model", NamedTensors(tensors.begin(), tensors.end()), most_bytes);
}

at::Tensor folder_ids(uint64_t seed, int64_t length = 41) {
  return at::randint(97, {2, length}, at::detail::createCPUGenerator(seed), at::kLong);
}

// Adds the results in one precision to `out`, under the names of testing::observed. As in training, the text is
// computed segment by segment, and no gradient flows into the memory of earlier segments.
void observe_published(const json& config, const Tensors& tensors, const at::Tensor& ids, at::ScalarType type,
                       const std::string& prefix, testing::Observed& out) {
  Tensors leaves;
  for (const auto& [name, tensor] : tensors) leaves[name] = tensor.to(type, false, /*copy=*/true).requires_grad_(true);
  const PublishedTransformerXl model(config, leaves);
  const int64_t length = ids.size(1) - 1;
  const bool same_length = config["same_length"];
  const int64_t segment = same_length ? 5 : config.value("tgt_len", int64_t{7});
  {
    const at::NoGradGuard guard;
    for (const auto& [name, tensor] : model.run(ids, segment)) out[prefix + name] = tensor;
  }
  const at::Tensor all = model.run(ids.narrow(1, 0, length), same_length ? length : segment).at("logits");
  (-all.gather(2, ids.narrow(1, 1, length).unsqueeze(2)).mean()).backward();
  for (const auto& [name, leaf] : leaves) {
    // If all layers share one bias, its gradient cannot be compared, because our model has a separate bias per layer.
    const bool shared = name == "transformer.r_w_bias" || name == "transformer.r_r_bias";
    if (!shared) out[prefix + "gradient." + name] = leaf.grad();
  }
}

struct FolderCase {
  const char* name;
  json changes;
};

const std::vector<FolderCase>& folder_cases() {
  const json segments = {{"same_length", false}, {"tgt_len", 6}, {"mem_len", 10}};
  static const std::vector<FolderCase> all = {
      {"published", {}},
      {"one_width", {{"div_val", 1}, {"d_embed", 30}}},
      {"one_width_projected", {{"div_val", 1}}},
      {"one_cluster", {{"cutoffs", json::array()}, {"tie_projs", {false}}}},
      {"norm_before", {{"pre_lnorm", true}, {"clamp_len", -1}}},
      {"segments", segments},
      {"segments_norm_before",
       {{"same_length", false}, {"tgt_len", 8}, {"mem_len", 3}, {"pre_lnorm", true}, {"clamp_len", 0}}},
      {"no_memory", {{"same_length", false}, {"tgt_len", 8}, {"mem_len", 0}}},
      {"own_head",
       {{"tie_word_embeddings", false}, {"tie_projs", {false, false, true, false}}, {"d_embed", 33}, {"div_val", 3}}},
      {"shared_biases", {{"untie_r", false}}}};
  return all;
}

void PrintTo(const FolderCase& c, std::ostream* out) { *out << c.name; }

class PublishedFolder : public ::testing::TestWithParam<FolderCase> {};

INSTANTIATE_TEST_SUITE_P(TransformerXl, PublishedFolder, ::testing::ValuesIn(folder_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PublishedFolder, Folder_MatchesPublishedModel) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const TemporaryFolder folder;
    const json config = published_config(GetParam().changes);
    const Tensors tensors = random_tensors(config, seed);
    write_folder(folder / "model", config, tensors, seed == 2 ? 9000 : uint64_t{1} << 30);
    EXPECT_EQ(std::filesystem::exists(folder / "model" / "model.safetensors.index.json"), seed == 2);
    LanguageModel model = LanguageModel::load(folder / "model");
    const at::Tensor ids = folder_ids(seed);
    testing::Observed theirs;
    observe_published(config, tensors, ids, at::kFloat, "fp32.", theirs);
    observe_published(config, tensors, ids, at::kDouble, "fp64.", theirs);
    // Compares log-probabilities, hidden states, attention matrices and gradients.
    const auto gradients = static_cast<int>(tensors.size()) - (config["untie_r"] ? 0 : 2);
    EXPECT_EQ(testing::expect_as_transformers(testing::observed(model, ids), theirs), 1 + 4 + 3 + gradients);

    // Computes the text in parts and token by token with a cache, and the log-likelihood of the labels.
    const at::NoGradGuard guard;
    KVCache cache;
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < 41;) {
      const int64_t count = begin == 0 ? 13 : begin < 30 ? 4 : 1;
      parts.push_back(model.logits(model.forward(ids.slice(1, begin, begin + count), {.cache = &cache}).hidden));
      begin += count;
    }
    testing::expect_as_close(at::cat(parts, 1), theirs.at("fp32.logits"), theirs.at("fp64.logits"), "by parts");
    const auto [log_prob, best] = model.log_likelihood(ids.slice(1, 0, 40), ids.slice(1, 1));
    const at::Tensor all = model.logits(model.forward(ids).hidden).slice(1, 0, 40);
    EXPECT_TRUE(at::allclose(log_prob, all.gather(2, ids.slice(1, 1).unsqueeze(2)).squeeze(2), 1e-5, 1e-5));
    EXPECT_TRUE(at::equal(best, all.argmax(2).eq(ids.slice(1, 1))));

    // The saved folder must have the same configuration and tensors.
    std::filesystem::create_directory(folder / "again");
    model.save(folder / "again");
    EXPECT_EQ(ModelConfig::from_directory(folder / "again").to_json(), model.config().to_json());
    const auto again = read_safetensors(folder / "again" / "model.safetensors");
    EXPECT_EQ(again.size(), tensors.size());
    for (const auto& [name, tensor] : tensors)
      EXPECT_TRUE(again.count(name) && at::equal(again.at(name), tensor)) << name;
    EXPECT_EQ(count_parameters(model.config()).total,
              std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                              [](int64_t n, const auto& t) { return n + t.second.numel(); }));
  }
}

// Files of transformers 4 contain tied tensors under both names.
TEST(TransformerXlFolder, RepeatedTiedTensors_AreAccepted) {
  const TemporaryFolder folder;
  const json config = published_config();
  Tensors tensors = random_tensors(config, 4);
  write_folder(folder / "once", config, tensors);
  for (const char* number : {"0", "1", "2", "3"}) {
    const std::string n = number;
    tensors["crit.out_layers." + n + ".weight"] =
        tensors.at("transformer.word_emb.emb_layers." + n + ".weight").clone();
    if (n != "0") tensors["crit.out_projs." + n] = tensors.at("transformer.word_emb.emb_projs." + n).clone();
  }
  tensors["transformer.pos_emb.inv_freq"] = at::ones({15});
  write_folder(folder / "twice", config, tensors);
  const at::NoGradGuard guard;
  const at::Tensor ids = folder_ids(3);
  const auto logits = [&](const char* name) {
    LanguageModel model = LanguageModel::load(folder / name);
    return model.logits(model.forward(ids).hidden);
  };
  EXPECT_TRUE(at::equal(logits("twice"), logits("once")));
  tensors.at("crit.out_projs.2")[0][0] += 1;
  write_folder(folder / "other", config, tensors);
  EXPECT_THAT(error_of([&] { logits("other"); }), Names({"crit.out_projs.2", "transformer.word_emb.emb_projs.2"}));
}

TEST(TransformerXlFolder, LoadError_ListsMismatches) {
  const TemporaryFolder folder;
  const json config = published_config();
  Tensors tensors = random_tensors(config, 4);
  tensors.erase("transformer.layers.1.dec_attn.r_net.weight");
  tensors.erase("crit.cluster_bias");
  tensors["transformer.layers.0.dec_attn.qkv_net.weight"] = at::zeros({21, 30});
  tensors["transformer.layers.3.dec_attn.r_r_bias"] = at::zeros({3, 7});
  write_folder(folder / "model", config, tensors);
  EXPECT_THAT(error_of([&] { LanguageModel::load(folder / "model"); }),
              Names({2, "transformer.layers.1.dec_attn.r_net.weight", "crit.cluster_bias", 1,
                     "transformer.layers.3.dec_attn.r_r_bias", "transformer.layers.0.dec_attn.qkv_net.weight",
                     std::string("[63, 30]"), std::string("[21, 30]")}));
}

TEST(TransformerXlFolder, UnsupportedValues_AreRejected) {
  const auto error = [](const char* key, const json& value) {
    return error_of([&] { ModelConfig::from_json(published_config({{key, value}}), "config.json"); });
  };
  EXPECT_EQ(error("dropout", 0.1), "");
  EXPECT_THAT(error("attn_type", 2), Names({"attn_type", 0, 2}));
  EXPECT_THAT(error("cutoffs", {30, 11}), Names({"cutoffs", "vocab_size", 97, 11, 30}));
  EXPECT_THAT(error("cutoffs", {97}), Names({"cutoffs", "vocab_size", 97, 0}));
  EXPECT_THAT(error("cutoffs", "all"), Names({"cutoffs", "all"}));
  EXPECT_THAT(error("div_val", 0), Names({"div_val", 1, 0}));
  EXPECT_THAT(error("div_val", 5), Names({"div_val", 1, "d_embed", 22, 5}));
  EXPECT_THAT(error("mem_len", 0), Names({"mem_len", 1, "same_length", 0}));
  EXPECT_THAT(error("d_model", 31), Names({"hidden_size", 31}));
}

// Tests configurations with the published sizes, in the formats of transformers 4 and of older versions.
TEST(TransformerXlFolder, PublishedSizes_AreRead) {
  const json older = {{"model_type", "transfo-xl"},
                      {"n_token", 267735},
                      {"tgt_len", 128},
                      {"tie_weight", true},
                      {"tie_projs", {false, true, true, true}}};
  for (const json& config : {older, json{{"model_type", "transfo-xl"}, {"vocab_size", 267735}}}) {
    const ModelConfig m = ModelConfig::from_json(config, "config.json");
    // Parameters: embedding tables of widths 1024, 256, 64 and 16, their projections, one separate projection of the
    // head, and biases. Each layer has five matrices of 1024 x 1024, two of 1024 x 4096, and vectors.
    const int64_t tables = 20000 * 1024 + 20000 * 256 + 160000 * 64 + 67735 * 16,
                  projections = 1024 * (1024 + 256 + 64 + 16);
    const int64_t layer = 5 * 1024 * 1024 + 2 * 1024 + 4 * 1024 + 2 * 4096 * 1024 + 4096 + 1024;
    EXPECT_EQ(count_parameters(m).total, tables + projections + 1024 * 1024 + 267735 + 3 * 1024 + 3 + 18 * layer);
    EXPECT_EQ(m.attention.window, 1600);
    EXPECT_EQ(m.positions.clamp_length, 1000);
    EXPECT_EQ(m.architecture(), "TransfoXLLMHeadModel");
  }
}

// Compares the gradients of float64 tables with finite differences.
TEST(AdaptiveTables, Gradients_MatchFiniteDifferences) {
  for (const json& changes : {json{}, json{{"div_val", 1}},
                              json{{"tie_word_embeddings", false}, {"tie_projs", {false, false, true, false}}}}) {
    const ModelConfig config = ModelConfig::from_json(published_config(changes), "config.json");
    const at::Tensor ids = folder_ids(5, 40), labels = folder_ids(6, 40).reshape({-1});
    AdaptiveTables tables(config, at::TensorOptions().dtype(at::kDouble));
    at::Generator generator = at::detail::createCPUGenerator(2);
    testing::Tensors given;
    for (const auto& [name, tensor] : tables.parameters())
      given.push_back(at::randn(tensor.sizes(), generator, tensor.options().requires_grad(false)) * 0.3);
    testing::expect_gradients(
        [&](const testing::Tensors& values) {
          AdaptiveTables fresh(config, at::TensorOptions().dtype(at::kDouble));
          size_t n = 0;
          for (auto& [name, tensor] : fresh.parameters()) tensor = values[n++];
          const at::Tensor hidden = fresh.embed(ids).tanh().flatten(0, 1);
          return testing::Tensors{std::get<0>(fresh.cross_entropy(hidden, labels)).reshape({1})};
        },
        given);
  }
}

}  // namespace
}  // namespace lazy
