// Tests the output of `lazy repro`: lists, plans, and one error line per mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "repro/recipe.h"
#include "support/error_of.h"
#include "support/run_command.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;

std::pair<int, std::string> lazy(const std::string& arguments) {
  return run_command(std::string(LAZY_BINARY) + " " + arguments);
}

TEST(ReproCommand, List_NamesEveryRecipeWithItsCost) {
  const auto [code, printed] = lazy("repro list --json");
  ASSERT_EQ(code, 0) << printed;
  const Json list = Json::parse(printed);
  EXPECT_EQ(list.size(), recipes().size());
  for (const Json& item : list) {
    for (const char* scale : {"tiny", "small", "paper"})
      EXPECT_GT(item["cost"][scale]["seconds"].get<double>(), 0) << item["recipe"];
  }
  EXPECT_THAT(lazy("repro list").second, HasSubstr("| fig6 | "));
}

// `lazy repro list` shows the scale of the last run of a recipe, taken from the records below --output.
TEST(ReproCommand, List_ShowsTheLastRunOfEachRecipe) {
  const fs::path output = fs::path(testing::TempDir()) / ("repro_last_" + std::to_string(::getpid()));
  const auto write = [&](const char* scale, int seeds, const char* finished) {
    const fs::path step = output / scale / "steps/lazy-1";
    fs::create_directories(step);
    std::ofstream(step / "record.json") << Json{{"finished", finished}, {"values", Json::object()}};
    std::ofstream(output / scale / "fig10.json")
        << Json{{"seeds", seeds}, {"date", "2030-01-01"}, {"steps", {{{"folder", step.string()}}}}};
  };
  write("small", 3, "2026-02-01");
  write("tiny", 1, "2026-01-05");
  const Json list = Json::parse(lazy("repro list --json --records nowhere --output " + output.string()).second);
  for (const Json& item : list) {
    if (item["recipe"] == "fig10")
      EXPECT_EQ(item["last_run"], (Json{{"scale", "small"}, {"seeds", 3}, {"date", "2026-02-01"}}));
    else
      EXPECT_TRUE(item["last_run"].is_null()) << item["recipe"];
  }
  EXPECT_THAT(lazy("repro list --output " + output.string()).second, Names({"fig10", "small", 3, "2026-02-01"}));
  fs::remove_all(output);
}

// A user can pass a recipe as a file. A mistake in the file gives one error line that names the position.
TEST(ReproCommand, UserRecipeFile_IsReadAndChecked) {
  const fs::path file = fs::path(testing::TempDir()) / ("own_" + std::to_string(::getpid()) + ".toml");
  const std::string good =
      "[recipe]\ntitle = \"t\"\nsource = \"s\"\nmodels = [\"lazy\", \"softmax\"]\n[[step]]\nkind = \"heldout\"\n"
      "[[claim]]\ntext = \"c\"\npaper = \"p\"\nmeasure = \"loss\"\nover = \"lazy\"\nunder = \"softmax\"\n"
      "side = \"below\"\nbound = 0\n";
  write_file_atomic(file, good);
  EXPECT_THAT(lazy("repro " + file.string() + " --dry-run --text " LAZY_SOURCE_DIR "/README.md").second,
              HasSubstr("softmax.heldout"));
  const auto names = [&](const std::string& from, const std::string& to, std::initializer_list<Token> tokens) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(file, text);
    const auto [code, printed] = lazy("repro " + file.string() + " --dry-run");
    EXPECT_EQ(code, 2) << printed;
    EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 1) << printed;
    EXPECT_THAT(printed, Names({file.filename().string()}));
    EXPECT_THAT(printed, Names(tokens)) << to;
  };
  names("kind = \"heldout\"", "kind = \"heldoot\"",
        {file.filename().string() + ":6", "step", "kind", "heldout", "heldoot"});
  names("kind = \"heldout\"", "kind = \"heldout\"\nmodels = [\"lazy\"]", {"models", "step", 1});
  names("[\"lazy\", \"softmax\"]", "[\"lazy\", \"softmx\"]", {"softmx", "softmax"});
  names("measure = \"loss\"", "measure = \"los\"", {"claim", 1, "measure", "STEP:PATH", "loss", "los"});
  names("under = \"softmax\"", "under = \"sotfmax\"", {"claim", 1, "given", "lazy", "softmax", "sotfmax"});
  names("under = \"softmax\"", "under = \"softmax\"\nfrom = \"densty\"", {"densty", "density"});
  names("bound = 0", "bond = 0", {"claim", 1, "bound", "side", "below"});
  names("bound = 0", "bound = 0\nfactr = 2", {"factr", "claim", 1, "factor"});
  names("\"c\"", "\"c at {scael}\"", {"{scael}"});
  names("under = \"softmax\"\n", "", {"claim", 1, "form", "difference", "under", "under_measure"});
  names("bound = 0", "bound = \"0\"", {"claim", "bound", "0"});
  names("side = \"below\"", "side = \"below\"\nscales = [\"huge\"]", {"scales", "tiny", "small", "paper", "huge"});
  names("[[step]]\nkind = \"heldout\"", "[[step]]\nkind = \"lengths\"\nsettings = [\"lengths=512]\"]",
        {"step", "settings", "NAME=VALUE", "JSON", "lengths=512]"});
  fs::remove(file);
}

TEST(ReproCommand, BadInput_IsNamedInTheError) {
  const auto names = [](const std::string& arguments, std::initializer_list<Token> tokens) {
    const auto [code, printed] = lazy("repro " + arguments);
    EXPECT_EQ(code, 2) << printed;
    EXPECT_THAT(printed, Names(tokens)) << arguments;
  };
  names("fig44", {"fig44", "'fig4'"});  // the suggestion is quoted; the list of all names is not
  names("fig6 --scale huge", {"--scale", "tiny", "small", "paper", "huge"});
  names("fig6 --scale small", {"--scale", "small", "--corpus", "DIR"});
  names("fig6 --corpus nowhere --output build/repro-test", {"--corpus", "nowhere"});
  names("table1 --data nowhere --output build/repro-test", {"--data", "nowhere"});
  names("cross-domain --domain code", {"--domain", "NAME=DIR", "code"});
  names("cross-domain --domain code=nowhere --output build/repro-test", {"--domain", "code=nowhere"});
  names("table3 --report --output build/repro-test", {"--report", "table3", "build/repro-test", 1});
  names("table3 --report --dry-run", {"--report", "--dry-run", "--only"});
  names("all --only lazy", {"--only", "all"});
  names("fig6 --text nowhere.txt --output build/repro-test", {"nowhere.txt"});
}

TEST(ReproCommand, DryRun_NamesStepsAndWritesNothing) {
  const fs::path output = fs::path(testing::TempDir()) / ("repro_dry_" + std::to_string(::getpid()));
  const auto [code, printed] = lazy("repro table1 --scale paper --dry-run --corpus corpus --output " + output.string());
  EXPECT_EQ(code, 0) << printed;
  EXPECT_THAT(printed, Names({"lazy-760m.heldout", "--data"}));
  EXPECT_FALSE(fs::exists(output));
}

TEST(ReproCommand, DryRun_OfPartOfThePlan) {
  const auto steps = [](const std::string& only) {
    const auto [code, printed] = lazy("repro parity --scale small --seeds 2 --dry-run --json --corpus nowhere" + only);
    EXPECT_EQ(code, 0) << printed;
    const Json plan = Json::parse(printed.substr(printed.find('{')));
    std::vector<std::string> ids;
    for (const Json& step : plan.at("steps")) ids.push_back(step.at("id"));
    return std::pair(ids, plan.at("cost"));
  };
  const auto [all, whole] = steps("");
  const auto [part, cost] = steps(" --only softmax-rope150k.seed2 --only lazy.heldout");
  EXPECT_LT(part.size(), all.size());
  EXPECT_THAT(part, testing::IsSupersetOf(
                        {"lazy", "lazy.heldout", "softmax-rope150k.seed2", "softmax-rope150k.seed2.heldout"}));
  for (const std::string& id : part)
    EXPECT_TRUE(id == "lazy" || id == "lazy.heldout" || id.starts_with("softmax-rope150k.seed2")) << id;
  EXPECT_EQ(cost.at("models"), 2);
  EXPECT_LT(cost.at("seconds"), whole.at("seconds"));
  const auto [code, printed] = lazy("repro parity --dry-run --only nothing");
  EXPECT_EQ(code, 2);
  EXPECT_THAT(printed, Names({"--only", "parity", "nothing", "lazy.heldout"}));
}

}  // namespace
}  // namespace lazy::repro
