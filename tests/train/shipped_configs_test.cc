// Every file in configs/, and every combination of a model with its recipe, must load. The models must have the
// expected parameter counts, and the runs must train for the number of tokens in their name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "core/config.h"
#include "core/config_files.h"
#include "support/error_of.h"
#include "train/config.h"

namespace lazy::train {
namespace {
namespace fs = std::filesystem;

// Loads a configuration file. A base file omits settings that only the files that extend it provide; they are set here.
TrainConfig load(const fs::path& path) {
  Config config = Config::load(path);
  std::vector<std::string> complete;
  if (!config.section("data").has("corpus")) complete.push_back("data.corpus=unset");
  if (!config.section("training").has("steps")) complete.push_back("training.steps=1000000");
  return TrainConfig::load(path, complete);
}

const fs::path kRoot = LAZY_SOURCE_DIR "/configs";

// Adds the models of the paper's sizes, combined with their recipes and variants. The key is the name of the run, such
// as lazy-340m-15b-no-elastic.
void add_paper_runs(std::map<std::string, TrainConfig>& out) {
  const std::map<std::string, std::string> recipes{{"-340m", "15b"}, {"-760m", "30b"}};
  for (const auto& entry : fs::directory_iterator(kRoot / "models")) {
    const std::string model = entry.path().stem(), recipe = recipes.at(model.substr(model.rfind('-')));
    std::vector<std::string> variants{""};
    for (const std::string& variant : variants_of(entry.path())) variants.push_back("+" + variant);
    for (const std::string& variant : variants) {
      const std::string composed =
          fmt::format("{0}/models/{1}.toml+{0}/recipes/{2}.toml{3}", kRoot.string(), model, recipe, variant);
      out.emplace(config_name(composed), load(composed));
    }
  }
}

std::map<std::string, TrainConfig> shipped() {
  std::map<std::string, TrainConfig> out;
  const fs::path& root = kRoot;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() == "evidence.toml") continue;  // a protocol of trainings, which tests/lab tests
    if (entry.path().extension() != ".toml") continue;
    const std::string name = fs::relative(entry.path(), root);
    out.emplace(name, load(entry.path()));
    for (const std::string& variant : variants_of(entry.path()))
      out.emplace(name + "+" + variant, load(entry.path().string() + "+" + variant));
  }
  add_paper_runs(out);
  return out;
}

std::string millions(const ModelConfig& model) {
  const ParameterCount count = count_parameters(model);
  return fmt::format("{:.1f} / {:.1f}", static_cast<double>(count.tied) / 1e6, static_cast<double>(count.untied) / 1e6);
}

// Parameter counts without tied embeddings, in millions, for the sizes 340M and 760M. The values are from the table of
// the paper; for TTT and Titans they are the counts of this project's configurations.
const std::map<std::string, std::pair<std::string, std::string>>& counts_of_mixers() {
  static const std::map<std::string, std::pair<std::string, std::string>> counts = {
      {"retnet", {"380.2", "777.9"}},          {"mamba2", {"382.4", "801.2"}},     {"delta_net", {"374.4", "778.7"}},
      {"gated_delta_net", {"347.2", "792.8"}}, {"ttt_linear", {"376.0", "782.2"}}, {"ttt_mlp", {"368.2", "778.8"}},
      {"titans_lmm", {"375.4", "771.6"}},      {"titans_mac", {"369.2", "771.8"}}, {"titans_mag", {"369.2", "771.8"}},
      {"titans_mal", {"381.8", "771.7"}}};
  return counts;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(ShippedConfigs, ParameterCounts_MatchSpecification) {
  int tabulated = 0;
  for (const auto& [name, config] : shipped()) {
    SCOPED_TRACE(name);
    const ModelConfig& m = config.model;
    if (contains(name, "compare-55m")) continue;
    if (!m.all_attention()) {
      const auto [small, large] = counts_of_mixers().at(lazy::name(m.mixer.type));
      EXPECT_EQ(fmt::format("{:.1f}", static_cast<double>(count_parameters(m).untied) / 1e6),
                contains(name, "340m") ? small : large);
    } else if (contains(name, "340m")) {
      const bool biased = m.attention.distance_bias_window > 0;
      EXPECT_EQ(millions(m), biased ? "341.3 / 374.1" : "341.1 / 373.9");
      EXPECT_EQ(biased, contains(name, "lazy") && !contains(name, "no-positional"));
    } else if (contains(name, "760m")) {
      if (m.attention.distance_bias_window == 0) {
        EXPECT_EQ(millions(m), "728.7 / 777.9");
      } else {
        EXPECT_EQ(millions(m), "728.9 / 778.1");  // the counts include 24 x 16 heads x 512 distance biases
      }
      EXPECT_EQ(m.attention.head_dim, 96);
      EXPECT_EQ(m.intermediate(), 4096);
    } else {
      continue;
    }
    ++tabulated;
    EXPECT_FALSE(m.tie_embeddings);
    EXPECT_EQ(m.attention.normalizer == Normalizer::elastic, contains(name, "lazy") && !contains(name, "no-elastic"));
    EXPECT_EQ(m.positions.rope_base,
              contains(name, "rope150k") ||
                      (contains(name, "lazy") && !contains(name, "rope10k") && !contains(name, "no-positional"))
                  ? 1.5e5
                  : 1e4);
  }
  EXPECT_GT(tabulated, 0);
}

TEST(ShippedConfigs, Recipes_MatchThePaper) {
  for (const auto& [name, config] : shipped()) {
    if (!contains(name, "recipes/") && !contains(name, "table2") && !contains(name, "-15b") && !contains(name, "-30b"))
      continue;
    if (name == "recipes/paper.toml") continue;
    SCOPED_TRACE(name);
    const int64_t billions = contains(name, "30b") ? 30 : contains(name, "15b") ? 15 : 10;
    EXPECT_EQ(config.steps * config.tokens_per_step(), billions << 30);
    EXPECT_EQ(config.tokens_per_step(), 524288);
    EXPECT_EQ(config.schedule.warmup_steps, billions == 30 ? 2048 : 1024);
    EXPECT_EQ(config.schedule.min_factor, 0.1);
    EXPECT_EQ(config.schedule.decay, Schedule::Decay::cosine);
    EXPECT_EQ(config.optimizer.lr, 4e-4);
    EXPECT_EQ(config.optimizer.beta2, 0.95);
    EXPECT_EQ(config.optimizer.eps, 1e-8);
    EXPECT_EQ(config.optimizer.weight_decay, contains(name, "titans") ? 0.1 : 0.01);
    EXPECT_EQ(config.max_norm, 1);
    const bool short_context = contains(name, "512") || contains(name, "table2");
    EXPECT_EQ(config.seq_len, short_context ? 512 : 4096);
    EXPECT_EQ(config.model.max_length, config.seq_len);
  }
}

TEST(ShippedConfigs, SinkConfigs_DifferOnlyInAttention) {
  const auto all = shipped();
  const auto base = all.at("sink-55m.toml+softmax");
  EXPECT_EQ(base.tokens_per_step(), 131072);
  EXPECT_NEAR(static_cast<double>(base.steps * base.tokens_per_step()), 200e6, 131072);
  EXPECT_NEAR(static_cast<double>(count_parameters(base.model).total), 55e6, 0.5e6);
  EXPECT_TRUE(base.model.is_plain_llama());
  EXPECT_TRUE(base.sequences.bos_per_sequence && base.sequences.eos_per_document && !base.sequences.bos_per_document);
  for (const char* name : {"lazy", "no-positional", "no-elastic"}) {
    const TrainConfig& config = all.at(fmt::format("sink-55m.toml+{}", name));
    // settings() contains the sections [data], [optimizer], [lr_scheduler] and [training]
    EXPECT_EQ(config.settings(), base.settings()) << name;
  }
  EXPECT_EQ(all.at("sink-55m.toml+lazy").model.kind(), "lazy");
  EXPECT_EQ(all.at("sink-55m.toml+no-positional").model.attention.normalizer, Normalizer::elastic);
  EXPECT_EQ(all.at("sink-55m.toml+no-positional").model.attention.distance_bias_window, 0);
  EXPECT_EQ(all.at("sink-55m.toml+no-elastic").model.attention.normalizer, Normalizer::softmax);
  EXPECT_EQ(all.at("sink-55m.toml+no-elastic").model.attention.distance_bias_window, 512);
}

TEST(ShippedConfigs, Comparison55M_ModelsHaveEqualSize) {
  int compared = 0;
  for (const auto& [name, config] : shipped()) {
    if (!contains(name, "compare-55m.toml+")) continue;
    EXPECT_NEAR(static_cast<double>(count_parameters(config.model).total) / 1e6, 55, 0.03 * 55) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST(ShippedConfigs, OutputFolders_AreUnique) {
  std::map<std::string, std::string> folders;
  for (const auto& [name, config] : shipped()) {
    if (!contains(config.toml, "output") || config.output.parent_path().filename() != "runs") continue;
    if (contains(name, "recipe") || contains(name, "models/")) continue;
    if (contains(name, "h200-smoke.toml+")) continue;  // these variants share the folder of h200-smoke.toml
    const auto [found, fresh] = folders.emplace(config.output.string(), name);
    EXPECT_TRUE(fresh) << name << " and " << found->second << " train in " << config.output;
  }
  EXPECT_FALSE(folders.empty());
}

// A shipped configuration that has been removed. path: its former path. use: the composed configuration that replaces
// it. output: the run folder of the composed configuration, relative to runs/ of the working directory, or absolute if
// the configuration sets training.output.
struct Removed {
  std::string path, use;
  fs::path output;
};

std::vector<Removed> removed_configs() {
  std::vector<Removed> out;
  const auto paper = [&](const std::string& model, const std::string& variant) {
    for (const auto& [size, recipe] : {std::pair{"340m", "15b"}, std::pair{"760m", "30b"}}) {
      const std::string name = fmt::format("{}-{}-{}{}", model, size, recipe, variant.empty() ? "" : "-" + variant);
      out.push_back({name,
                     fmt::format("models/{}-{}.toml+recipes/{}.toml{}", model, size, recipe,
                                 variant.empty() ? "" : "+" + variant),
                     name});
    }
  };
  for (const char* model : {"lazy", "transformer", "retnet", "mamba2", "deltanet", "gated-deltanet", "ttt-linear",
                            "ttt-mlp", "titans-lmm", "titans-mac", "titans-mag", "titans-mal"}) {
    paper(model, "");
  }
  // The models sigmoid and softmax-sink are now variants of transformer.
  for (const char* model : {"sigmoid", "softmax-sink"}) {
    for (const auto& [size, recipe] : {std::pair{"340m", "15b"}, std::pair{"760m", "30b"}}) {
      out.push_back({fmt::format("models/{}-{}", model, size),
                     fmt::format("models/transformer-{}.toml+{}", size, model),
                     fmt::format("transformer-{}-{}", size, model)});
      out.push_back({fmt::format("{}-{}-{}", model, size, recipe),
                     fmt::format("models/transformer-{}.toml+recipes/{}.toml+{}", size, recipe, model),
                     fmt::format("transformer-{}-{}-{}", size, recipe, model)});
    }
  }
  for (const char* variant : {"no-elastic", "no-positional", "rope10k"}) paper("lazy", variant);
  paper("transformer", "rope150k");
  const auto variants = [&](const std::string& file, const std::string& path, const fs::path& output,
                            const std::vector<std::string>& names) {
    for (const std::string& name : names) out.push_back({path + name, file + "+" + name, output.string() + name});
  };
  const fs::path source = kRoot.parent_path();
  const std::vector<std::string> normalizers{"sparsemax",      "entmax15",         "elastic",
                                             "elastic-from-0", "elastic-constant", "elastic-fixed"};
  variants("sink-55m.toml", "sink-55m-", "sink-55m-", {"softmax", "lazy", "no-positional", "no-elastic", "gpt2"});
  variants("demo.toml", "demo-", source / "build/demo/", {"lazy", "softmax"});
  variants("table2.toml", "table2/", "table2-", {"softmax"});
  variants("table2.toml", "table2/", "table2-", normalizers);
  variants("compare-55m.toml", "compare-55m/", source / "runs/compare-55m/",
           {"transformer", "lazy", "retnet", "mamba2", "deltanet", "gated-deltanet", "ttt-linear", "ttt-mlp",
            "titans-lmm", "titans-mac", "titans-mag", "titans-mal", "sigmoid", "softmax-sink"});
  variants("compare-55m.toml", "compare-55m/", source / "runs/compare-55m/", normalizers);
  out.push_back({"compare-55m/recipe", "compare-55m.toml", "compare-55m"});
  return out;
}

// Adds the path of configs/ to each file of a composed configuration, which consists of files and variants joined by
// `+`.
std::string in_root(const std::string& composed) {
  std::string out;
  for (const std::string& part : config_parts(composed))
    out += (out.empty() ? "" : "+") + (is_config_file(part) ? (kRoot / part).string() : part);
  return out;
}

TEST(ShippedConfigs, RemovedConfigs_AreReplaced) {
  for (const Removed& old : removed_configs()) {
    SCOPED_TRACE(old.path);
    const TrainConfig config = load(in_root(old.use));
    EXPECT_EQ(config.output, fs::absolute("runs") / old.output);
    const std::string error = error_of([&] { Config::load(kRoot / (old.path + ".toml")); });
    std::vector<std::string> words;
    for (const std::string& part : config_parts(old.use))
      words.push_back(is_config_file(part) ? fs::path(part).stem().string() : "+" + part);
    for (const std::string& word : words) EXPECT_TRUE(contains(error, word.c_str())) << error;
  }
}

}  // namespace
}  // namespace lazy::train
