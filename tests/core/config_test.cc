#include "core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST_F(ConfigTest, LaterFilesAndOverrides_ReplaceEarlierValues) {
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
  // The printed configuration, when it is parsed again, must have the same values.
  Config again = Config::parse(config.to_toml());
  EXPECT_EQ(again.to_toml(), config.to_toml());
}

TEST_F(ConfigTest, Extends_AcceptsAList) {
  file("shape.toml", "[model]\nlayers = 4\nwidth = 192\n");
  file("recipe.toml", "[model]\nwidth = 8\n[training]\nsteps = 10\n");
  Config config = Config::load(file("run.toml", "extends = [\"shape.toml\", \"recipe.toml\"]\n[training]\nseed = 1\n"));
  EXPECT_EQ(config.to_toml(), "[model]\nlayers = 4\nwidth = 8\n\n[training]\nseed = 1\nsteps = 10\n");
  const auto wrong = file("wrong.toml", "\nextends = [\"shape.toml\", 3]\n");
  EXPECT_THAT(error_of([&] { Config::load(wrong); }), Names({wrong.string() + ":2", "extends"}));
}

TEST_F(ConfigTest, OnlySections_AreAccepted) {
  EXPECT_THAT(error_of([] { Config::parse("x = [1, 2]\n", "a.toml"); }), Names({"a.toml:1", "x", "[section]"}));
  EXPECT_THAT(error_of([] { Config::parse("\n[[model]]\nlayers = 1\n", "a.toml"); }),
              Names({"a.toml:2", "model", "[section]"}));
}

TEST_F(ConfigTest, UnknownKey_SuggestsClosestName) {
  Config config = Config::parse("[model]\nhiden_size = 3\n", "a.toml");
  auto model = config.section("model");
  model.integer("hidden_size", 1);
  EXPECT_THAT(error_of([&] { config.check_all_used(); }),
              IsMessage("config: a.toml:2: unknown key 'hiden_size' in [model]; did you mean 'hidden_size'?"));
  Config misplaced = Config::parse("[mixer]\nlr = 3\n", "a.toml");
  misplaced.section("mixer").integer("heads", 1);
  misplaced.section("optimizer").number("lr", 1);
  EXPECT_THAT(error_of([&] { misplaced.check_all_used(); }), Names({"a.toml:2", "lr", "[mixer]", "[optimizer]"}));
  Config window = Config::parse("[mixer]\nwindow = 3\n", "a.toml");
  window.section("mixer").integer("heads", 1);
  window.section("model").integer("window_size", 1);
  EXPECT_THAT(error_of([&] { window.check_all_used(); }),
              Names({"a.toml:2", "window", "[mixer]", "window_size", "[model]"}));
  Config other = Config::parse("[modle]\nx = 3\n", "a.toml");
  other.section("model");
  EXPECT_THAT(error_of([&] { other.check_all_used(); }), Names({"a.toml:2", "[modle]", "[model]"}));
}

TEST_F(ConfigTest, WrongTypeOrRange_ErrorNamesLocation) {
  Config config = Config::parse("[a]\nx = \"three\"\ny = -1\nz = \"sofmax\"\n", "a.toml");
  auto a = config.section("a");
  EXPECT_THAT(error_of([&] { a.integer("x", 0); }),
              IsMessage("config: a.toml:2: a.x: expected an integer, found a string ('three')"));
  EXPECT_THAT(error_of([&] { a.integer("y", 0, 1); }), Names({"a.toml:3", "a.y", 1, -1}));
  EXPECT_THAT(
      error_of([&] {
        a.choice("z", "elastic", {"softmax", "elastic"});
      }),
      IsMessage("config: a.toml:4: a.z: expected one of softmax, elastic, found 'sofmax'; did you mean 'softmax'?"));
}

TEST_F(ConfigTest, NestedTable_KeysArePrefixedWithItsName) {
  Config config = Config::parse("[a]\nx = { y = \"В\", z = 1 }\nw.z = 2\n[a.v]\nu = 3\n");
  ConfigSection a = config.section("a");
  EXPECT_EQ(a.string("x.y", ""), "В");
  EXPECT_EQ(a.integer("x.z", 0), 1);
  EXPECT_EQ(a.integer("w.z", 0), 2);
  EXPECT_EQ(a.integer("v.u", 0), 3);
  config.check_all_used();
  Config written = Config::parse(config.to_toml());
  EXPECT_EQ(written.section("a").keys(), a.keys());
  Config unknown = Config::parse("[a]\nx = { y = 1 }\n");
  unknown.section("a").integer("x.z", 0);
  EXPECT_THAT(error_of([&] { unknown.check_all_used(); }), Names({"configuration:2", "x.y"}));
}

TEST_F(ConfigTest, MalformedFile_ErrorIsOneLine) {
  const auto broken = file("broken.toml", "[model\nx = 1\n");
  const std::string message = error_of([&] { Config::load(broken); });
  EXPECT_THAT(message, Names({"broken.toml:1"}));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  // The message of toml++ contains a line break, which must not appear in the error.
  const std::string quoted = error_of([&] { Config::parse("[a]\nx = t\ny = 1\n"); });
  EXPECT_THAT(quoted, Names({"configuration:2"}));
  EXPECT_EQ(quoted.find('\n'), std::string::npos) << quoted;
  const auto circle = file("circle.toml", "extends = \"circle.toml\"\n");
  EXPECT_THAT(error_of([&] { Config::load(circle); }), Names({"circle.toml", "extends"}));
  EXPECT_THAT(error_of([&] { Config::load(folder_ / "absent.toml"); }), Names({"absent.toml"}));
  // Keys must be ASCII in TOML. Strings and comments may contain any characters.
  EXPECT_THAT(error_of([&] { Config::parse("[a]\n\u0397 = 1\n"); }), Names({"configuration:2"}));
  const char* const anything = R"([a] # Η
v = "\"Η" # "Η
w = 'Η\' # 'Η
x = """
Η"" \""" Η"""""
y = '''
Η' ''''
)";
  EXPECT_EQ(error_of([&] { Config::parse(anything); }), "");
  // In an invalid value, toml++ does not treat a quote as the start of a string. The letters below are therefore
  // outside of strings.
  for (const char* broken_value :
       {"\u00E9 = 1", "x = \u00E9", "x = 1 \u0160", "[\u00E9]", "x = [1, \uFB10]", "x = -\"В\"", "x = 1\"В\"",
        "x = =\"В\"", "x = [.\"В\"]", "x = \"a\"-\"В\"", "x = -[\"В\"]", "x = [-'В']"}) {
    EXPECT_THAT(error_of([&] { Config::parse(std::string("[a]\n") + broken_value + "\n"); }),
                Names({"configuration:2"}))
        << broken_value;
  }
  EXPECT_EQ(error_of([&] { Config::parse("[a]\nx=[\"В\",'В',\n\"В\"]\n'y'=\"В\"#В\n\"z\" =\"\"\"В\"\"\"\n"); }), "");
  EXPECT_THAT(error_of([&] { Config::parse("[a]\nx=[{y=\"В\",\"В\"=1}]\n"); }),
              Names({"configuration:2", "a.x"}));  // valid TOML, but a.x is a list of tables, which is not supported
  const auto good = file("good.toml", "[a]\nx = 1\n");
  EXPECT_THAT(error_of([&] { Config::load(good, {"nonsense"}); }), Names({"--set", "nonsense"}));
  EXPECT_THAT(error_of([&] { Config::load(good, {"a.x=\xFF"}); }), Names({"--set", "a.x=\uFFFD", "UTF-8"}));
  Config spaced = Config::load(good, {"a.y = two words"});
  EXPECT_EQ(spaced.section("a").string("y", ""), "two words");
  Config greek = Config::load(good, {"a.x=\u0397"});
  EXPECT_EQ(greek.section("a").string("x", ""), "\u0397");
}

TEST_F(ConfigTest, MissingConfiguration_ErrorNamesInstalledCopy) {
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path() / folder_.filename();
  const fs::path name = folder_.filename() / "model.toml";
  fs::create_directories(beside);
  write_file_atomic(beside / "model.toml", "[model]\nlayers = 4\n");
  EXPECT_THAT(error_of([&] { Config::load(name); }), Names({name.string(), "cp", beside.string()}));
  EXPECT_EQ(error_of([&] { Config::load(beside / "model.toml"); }), "");
  fs::remove_all(beside);
  const std::string missing = error_of([&] { Config::load(name); });
  EXPECT_THAT(missing, Names({name.string()}));
  EXPECT_THAT(missing, testing::Not(Names({beside.string()})));
}

}  // namespace lazy
