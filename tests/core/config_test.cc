#include "core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "support/error_of.h"

namespace lazy {
namespace fs = std::filesystem;

class ConfigTest : public testing::Test {
 protected:
  fs::path folder_ = fs::path(testing::TempDir()) / ("config_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path file(const std::string& name, const std::string& text) {
    write_file_atomic(folder_ / name, text);
    return folder_ / name;
  }
};

TEST_F(ConfigTest, LaterFilesAndOverridesWin) {
  file("base.toml", "[model]\nlayers = 4\nwidth = 192\n[training]\nsteps = 10\n");
  const auto path = file("run.toml", "extends = \"base.toml\"\n[model]\nlayers = 6\n");
  Config config = Config::load(path, {"training.steps=20", "model.kind=lazy", "model.rates=[1, 2.5]"});
  auto model = config.section("model");
  EXPECT_EQ(model.integer("layers", 0), 6);
  EXPECT_EQ(model.integer("width", 0), 192);
  EXPECT_EQ(model.string("kind", ""), "lazy");
  EXPECT_EQ(model.numbers("rates", {}), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(config.section("training").integer("steps", 0), 20);
  EXPECT_NO_THROW(config.check_all_used());
  // What it prints loads to the same values.
  Config again = Config::parse(config.to_toml());
  EXPECT_EQ(again.to_toml(), config.to_toml());
}

TEST_F(ConfigTest, ExtendsAList) {
  file("shape.toml", "[model]\nlayers = 4\nwidth = 192\n");
  file("recipe.toml", "[model]\nwidth = 8\n[training]\nsteps = 10\n");
  Config config = Config::load(file("run.toml", "extends = [\"shape.toml\", \"recipe.toml\"]\n[training]\nseed = 1\n"));
  EXPECT_EQ(config.to_toml(), "[model]\nlayers = 4\nwidth = 8\n\n[training]\nseed = 1\nsteps = 10\n");
  const auto wrong = file("wrong.toml", "\nextends = [\"shape.toml\", 3]\n");
  EXPECT_EQ(error_of([&] { Config::load(wrong); }),
            "config: " + wrong.string() + ":2: extends: expected a file name or a list of them");
}

TEST_F(ConfigTest, ArraysOfTablesKeepTheirOrder) {
  const char* text = "[[claim]]\ntext = \"a\"\n[[claim]]\n[[claim]]\ntext = \"c\"\nbond = 1\n";
  Config config = Config::parse(text, "a.toml");
  std::vector<std::string> found;
  for (ConfigSection claim : config.sections("claim")) {
    found.push_back(claim.name() + claim.string("text", ""));
    claim.number("bound", 0);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"claim 1a", "claim 2", "claim 3c"}));
  EXPECT_TRUE(config.sections("row").empty());
  EXPECT_EQ(error_of([&] { config.check_all_used(); }),
            "config: a.toml:6: unknown key 'bond' in [claim 3]; did you mean 'bound'?");
  EXPECT_THAT(error_of([] { Config::parse("x = [1, 2]\n", "a.toml"); }),
              testing::HasSubstr("a.toml:1: x: expected a [section]"));
}

TEST_F(ConfigTest, UnknownKeysSuggestTheNearest) {
  Config config = Config::parse("[model]\nhiden_size = 3\n", "a.toml");
  auto model = config.section("model");
  model.integer("hidden_size", 1);
  EXPECT_EQ(error_of([&] { config.check_all_used(); }),
            "config: a.toml:2: unknown key 'hiden_size' in [model]; did you mean 'hidden_size'?");
  Config misplaced = Config::parse("[mixer]\nlr = 3\n", "a.toml");
  misplaced.section("mixer").integer("heads", 1);
  misplaced.section("optimizer").number("lr", 1);
  EXPECT_EQ(error_of([&] { misplaced.check_all_used(); }),
            "config: a.toml:2: unknown key 'lr' in [mixer]; it belongs to [optimizer]");
  Config window = Config::parse("[mixer]\nwindow = 3\n", "a.toml");
  window.section("mixer").integer("heads", 1);
  window.section("model").integer("window_size", 1);
  EXPECT_EQ(error_of([&] { window.check_all_used(); }),
            "config: a.toml:2: unknown key 'window' in [mixer]; did you mean window_size of [model]?");
  Config other = Config::parse("[modle]\nx = 3\n", "a.toml");
  other.section("model");
  EXPECT_EQ(error_of([&] { other.check_all_used(); }),
            "config: a.toml:2: unknown section [modle]; did you mean [model]?");
}

TEST_F(ConfigTest, WrongTypesAndRangesNameThePlace) {
  Config config = Config::parse("[a]\nx = \"three\"\ny = -1\nz = \"sofmax\"\n", "a.toml");
  auto a = config.section("a");
  EXPECT_EQ(error_of([&] { a.integer("x", 0); }),
            "config: a.toml:2: a.x: expected an integer, found a string ('three')");
  EXPECT_EQ(error_of([&] { a.integer("y", 0, 1); }), "config: a.toml:3: a.y: expected at least 1, found -1");
  EXPECT_EQ(error_of([&] {
              a.choice("z", "elastic", {"softmax", "elastic"});
            }),
            "config: a.toml:4: a.z: expected one of softmax, elastic, found 'sofmax'; did you mean 'softmax'?");
}

TEST_F(ConfigTest, BrokenFilesGiveOneLine) {
  const auto broken = file("broken.toml", "[model\nx = 1\n");
  const std::string message = error_of([&] { Config::load(broken); });
  EXPECT_NE(message.find("broken.toml:1"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  const std::string quoted = error_of([&] { Config::parse("[a]\nx = t\ny = 1\n"); });  // toml++ quotes the line break
  EXPECT_NE(quoted.find("configuration:2"), std::string::npos) << quoted;
  EXPECT_EQ(quoted.find('\n'), std::string::npos) << quoted;
  const auto circle = file("circle.toml", "extends = \"circle.toml\"\n");
  EXPECT_NE(error_of([&] { Config::load(circle); }).find("circle"), std::string::npos);
  EXPECT_NE(error_of([&] { Config::load(folder_ / "absent.toml"); }).find("absent.toml"), std::string::npos);
  EXPECT_NE(error_of([&] { Config::load(circle, {"nonsense"}); }), "");
  // Where TOML allows ASCII only; strings and comments may hold anything.
  EXPECT_EQ(error_of([&] { Config::parse("[a]\n\u0397 = 1\n"); }),
            "config: configuration:2: expected ASCII outside of strings and comments");
  const char* const anything = R"([a] # Η
v = "\"Η" # "Η
w = 'Η\' # 'Η
x = """
Η"" \""" Η"""""
y = '''
Η' ''''
)";
  EXPECT_EQ(error_of([&] { Config::parse(anything); }), "");
  // A quote inside of what is no value does not begin a string for toml++, either.
  for (const char* broken_value :
       {"x = -\"В\"", "x = 1\"В\"", "x = =\"В\"", "x = [.\"В\"]", "x = \"a\"-\"В\"", "x = -[\"В\"]", "x = [-'В']"}) {
    EXPECT_EQ(error_of([&] { Config::parse(std::string("[a]\n") + broken_value + "\n"); }),
              "config: configuration:2: expected ASCII outside of strings and comments")
        << broken_value;
  }
  EXPECT_EQ(error_of([&] { Config::parse("[a]\nx=[\"В\",'В',\n\"В\"]\n'y'=\"В\"#В\n\"z\" =\"\"\"В\"\"\"\n"); }), "");
  EXPECT_NE(error_of([&] { Config::parse("[a]\nx={y=\"В\",\"В\"=1}\n"); }).find("a.x"),
            std::string::npos);  // read, and then refused
  const auto good = file("good.toml", "[a]\nx = 1\n");
  EXPECT_EQ(error_of([&] { Config::load(good, {"a.x=\xFF"}); }), "config: --set a.x=\uFFFD: expected UTF-8");
  Config spaced = Config::load(good, {"a.y = two words"});
  EXPECT_EQ(spaced.section("a").string("y", ""), "two words");
  Config greek = Config::load(good, {"a.x=\u0397"});
  EXPECT_EQ(greek.section("a").string("x", ""), "\u0397");
}

TEST_F(ConfigTest, AMissingConfigurationThatLiesBesideTheProgramIsNamed) {
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / folder_.filename();
  const fs::path name = folder_.filename() / "model.toml";
  fs::create_directories(beside);
  write_file_atomic(beside / "model.toml", "[model]\nlayers = 4\n");
  EXPECT_EQ(error_of([&] { Config::load(name); }),
            "config: " + name.string() + " does not exist; the configurations that came with the program: cp -r " +
                beside.string() + " .");
  EXPECT_EQ(error_of([&] { Config::load(beside / "model.toml"); }), "");
  fs::remove_all(beside);
  EXPECT_EQ(error_of([&] { Config::load(name); }).find("came with"), std::string::npos);
}

}  // namespace lazy
