#include "core/config_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config.h"
#include "core/error.h"
#include "core/file.h"
#include "support/error_of.h"

namespace lazy {
namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;

const std::string kConfigs = LAZY_SOURCE_DIR "/configs";

class ConfigFiles : public testing::Test {
 protected:
  // The '+' in this folder's name must not be read as the separator of configuration files.
  fs::path folder_ = fs::path(testing::TempDir()) / ("config+files_" + std::to_string(::getpid()));
  void SetUp() override {
    file("model.toml",
         "[model]\nlayers = 4\nwidth = 8\n[over_recipe.optimizer]\ndecay = 1\n"
         "[variants.wide]\nmodel.width = 16\n[variants.long]\ntraining.steps = 30\n"
         "[variants.apart]\ntraining.output = \"out\"\n");
    file("recipe.toml", "[model]\nwidth = 9\n[optimizer]\ndecay = 2\nlr = 3\n[training]\nsteps = 10\n");
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    write_file_atomic(folder_ / name, text);
    return folder_ / name;
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string merged(const std::string& composed) { return Config::load(folder_ / composed).to_toml(); }
};

TEST_F(ConfigFiles, Parts_AreFilesAndVariants) {
  EXPECT_THAT(config_parts("a/b.toml"), ElementsAre("a/b.toml"));
  EXPECT_THAT(config_parts("b.toml+wide"), ElementsAre("b.toml", "wide"));
  EXPECT_THAT(config_parts("/x+y/b.toml+/x+y/c.toml+wide+d.toml+e"),
              ElementsAre("/x+y/b.toml", "/x+y/c.toml", "wide", "d.toml", "e"));
  EXPECT_THAT(config_parts("a+b"), ElementsAre("a+b"));
  EXPECT_THAT(config_parts(file("odd.toml+name.toml", "")), ElementsAre(folder_ / "odd.toml+name.toml"));
  EXPECT_EQ(config_name("x/lazy-340m.toml+y/15b.toml+no-elastic"), "lazy-340m-15b-no-elastic");
  EXPECT_EQ(config_name("x/try.1.toml"), "try.1");
}

TEST_F(ConfigFiles, Parts_OverrideInOrder) {
  EXPECT_EQ(merged("model.toml"), "[model]\nlayers = 4\nwidth = 8\n");
  EXPECT_EQ(merged("model.toml+wide"), "[model]\nlayers = 4\nwidth = 16\n");
  const std::string recipe = folder_ / "recipe.toml";
  EXPECT_EQ(merged("model.toml+" + recipe),
            "[model]\nlayers = 4\nwidth = 9\n\n[optimizer]\ndecay = 1\nlr = 3\n\n[training]\nsteps = 10\n");
  EXPECT_EQ(merged("model.toml+" + recipe + "+long+wide"),
            "[model]\nlayers = 4\nwidth = 16\n\n[optimizer]\ndecay = 1\nlr = 3\n\n[training]\nsteps = 30\n");
  Config variant = Config::load(folder_ / "model.toml+apart");
  EXPECT_EQ(variant.section("training").resolved("output", "out"), folder_ / "out");
}

TEST_F(ConfigFiles, Extends_AcceptsParts) {
  file("runs/one.toml", "extends = \"../model.toml+../recipe.toml+wide\"\n[model]\nlayers = 5\n");
  EXPECT_EQ(merged("runs/one.toml"),
            "[model]\nlayers = 5\nwidth = 16\n\n[optimizer]\ndecay = 1\nlr = 3\n\n[training]\nsteps = 10\n");
  file("other.toml", "extends = \"model.toml\"\n[variants.wide]\nmodel.layers = 6\n");
  EXPECT_EQ(merged("other.toml+wide"), "[model]\nlayers = 6\nwidth = 16\n") << "both definitions apply";
  EXPECT_THAT(variants_of(folder_ / "other.toml"), ElementsAre("apart", "long", "wide"));
}

TEST_F(ConfigFiles, UnknownVariant_NamesTheKnownOnes) {
  const auto error = [&](const std::string& composed) { return error_of([&] { merged(composed); }); };
  EXPECT_THAT(error("model.toml+wyde"), Names({path("model.toml"), "wyde", "long", "wide"}));
  EXPECT_THAT(error("recipe.toml+wide"), Names({path("recipe.toml"), "wide"}));
  file("wrong.toml", "[model]\n[variants]\nwide = 3\n");
  EXPECT_THAT(error("wrong.toml"), Names({path("wrong.toml:3"), "variants.wide"}));
}

TEST_F(ConfigFiles, ModelAndRecipe_AreNamesOrFiles) {
  EXPECT_THAT(shipped_names(ShippedKind::model), Contains("lazy-340m"));
  EXPECT_THAT(shipped_names(ShippedKind::recipe), Contains("15b"));
  const auto parts = config_parts(compose_config("lazy-340m+no-elastic", "15b"));
  EXPECT_EQ(parts.size(), 3);
  EXPECT_TRUE(fs::equivalent(parts[0], kConfigs + "/models/lazy-340m.toml"));
  EXPECT_TRUE(fs::equivalent(parts[1], kConfigs + "/recipes/15b.toml"));
  EXPECT_EQ(parts[2], "no-elastic");
  const std::string own = folder_ / "model.toml";
  EXPECT_EQ(config_name(compose_config(own + "+wide", "15b")), "model-15b-wide");
  EXPECT_EQ(resolve_config("lazy-340m+15b+no-elastic"), compose_config("lazy-340m+no-elastic", "15b"));
  EXPECT_EQ(resolve_config(own + "+wide"), own + "+wide");
  EXPECT_TRUE(names_shipped_model("lazy-340m+15b"));
  EXPECT_FALSE(names_shipped_model("organization/lazy-340m"));
  EXPECT_THAT(error_of([] { compose_config("lazy-350m", "15b"); }), Names({"--model", "lazy-350m", "lazy-340m"}));
  // Some former models are now variants of other models. For their names, the error contains the new name.
  EXPECT_TRUE(names_shipped_model("sigmoid-340m"));
  EXPECT_THAT(error_of([] { compose_config("sigmoid-340m", "15b"); }), Names({"--model", "transformer-340m+sigmoid"}));
  EXPECT_THAT(error_of([] { resolve_config("softmax-sink-760m+30b"); }), Names({"transformer-760m+softmax-sink"}));
  EXPECT_THAT(error_of([] { compose_config("lazy-340m", "15"); }), Names({"--recipe", "15", "15b", "30b"}));
  EXPECT_THAT(error_of([] { resolve_config("lazy-350m+15b"); }), Names({"lazy-350m", "lazy-340m"}));
}

TEST_F(ConfigFiles, OnlyRemovedFiles_HaveAReplacement) {
  EXPECT_THAT(replacement_of(kConfigs + "/lazy-340m-15b.toml", false), Names({"--model", "lazy-340m", "15b"}));
  EXPECT_THAT(error_of([&] { Config::load(file("mine.toml", "extends = \"configs/lazy-340m-15b.toml\"\n")); }),
              Names({"configs/lazy-340m-15b.toml", "models/lazy-340m.toml+recipes/15b.toml"}));
  EXPECT_THAT(replacement_of(kConfigs + "/models/sigmoid-340m.toml", false),
              Names({kConfigs + "/models/transformer-340m.toml+sigmoid"}));
  EXPECT_THAT(replacement_of(kConfigs + "/sigmoid-340m-15b.toml", false),
              Names({"--model", "transformer-340m+sigmoid", "15b"}));
  for (const char* path : {"models/sigmoid-350m.toml", "lazy-340m-15b.toml", "configs/lazy-340m-15c.toml",
                           "configs/lazy-340m-15b-other.toml", "configs/compare-55m/other.toml", "other/configs.toml",
                           "configs/sink-55m"}) {
    EXPECT_EQ(replacement_of(folder_ / path, false), "") << path;
  }
}

}  // namespace lazy
