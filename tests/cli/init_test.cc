// Tests `lazy init` as a command-line program: it must write a configuration that `lazy train` accepts unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/file.h"
#include "core/random.h"
#include "model/temporary_folder.h"
#include "support/error_of.h"
#include "support/run_command.h"

namespace lazy {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class Init : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(LAZY_BINARY)) GTEST_SKIP() << LAZY_BINARY << " is not built";
    fs::create_directories(folder_ / "text");
    // Write files of source code and of prose with random lines.
    Random random(3);
    for (int file = 0; file < 12; ++file) {
      std::string code;
      for (int line = 0; line < 400; ++line)
        code += "value_" + std::to_string(random.below(50)) + " = compute(" + std::to_string(random.below(9)) + ")\n";
      write_file_atomic(folder_ / "text" / ("module" + std::to_string(file) + ".py"), code);
    }
    write_file_atomic(folder_ / "text" / "README.md", "# Made-up programs\n\nThey compute values.\n");
  }
  std::pair<int, std::string> lazy(const std::string& arguments) const {
    return run_command("cd " + folder_.path().string() + " && CUDA_VISIBLE_DEVICES= " LAZY_BINARY " --threads 2 " +
                       arguments);
  }
  testing::TemporaryFolder folder_;
};

using InitSlow = Init;

TEST_F(InitSlow, Configuration_TrainsUnchanged) {
  const auto [status, out] = lazy("init text --output my.toml --minutes 0.15");
  ASSERT_EQ(status, 0) << out;
  EXPECT_THAT(out, AllOf(Names({12, ".py", 1, ".md", "tokens/s"}), EndsWith("my.toml\n")));
  const std::string toml = read_file(folder_ / "my.toml");
  EXPECT_THAT(toml, AllOf(HasSubstr("\nkind = \"lazy\"\n"), HasSubstr("\ncorpus = \"my-corpus\"\n"),
                          HasSubstr("\noutput = \"runs/my\"\n"), HasSubstr("\nminutes = 0.15\n"),
                          HasSubstr("--code --output my-corpus --tokenizer bytes")));
  const auto [trained, log] = lazy("train my.toml");
  ASSERT_EQ(trained, 0) << log;
  EXPECT_TRUE(fs::exists(folder_ / "runs" / "my" / "model" / "config.json"));
  EXPECT_THAT(log, Names({"nats/token", "bits/byte"}));
  // Commands accept the run folder: they use its finished model, or else its newest checkpoint.
  for (const bool finished : {true, false}) {
    if (!finished) fs::remove_all(folder_ / "runs" / "my" / "model");
    const std::string used = finished ? "runs/my/model" : "runs/my/checkpoints/step-";
    for (const std::string arguments :
         {"generate runs/my --prompt x --max-tokens 3", "sinks runs/my --corpus my-corpus --json -",
          "probe runs/my --text text/README.md --json -", "eval runs/my --corpus my-corpus --limit 2", "info runs/my",
          finished ? "export runs/my exported" : "export runs/my exported-checkpoint"}) {
      const auto [done, printed] = lazy(arguments);
      EXPECT_EQ(done, 0) << arguments << printed;
      if (!finished || arguments.ends_with("-")) {
        EXPECT_THAT(printed, HasSubstr(used)) << arguments;
      }
    }
  }
  // `lazy init` must not replace an existing run.
  const auto [refused, message] = lazy("init text --output my.toml --force");
  EXPECT_EQ(refused, 2);
  EXPECT_THAT(message, Names({"init", "runs/my", "--name"}));
}

TEST_F(Init, ExistingCorpus_IsUsedUnchanged) {
  ASSERT_EQ(lazy("data prepare text --code --tokenizer bytes --validation 0.2 --output made").first, 0);
  const auto [status, out] = lazy("init made --output other.toml --minutes 0.05 --kind transformer --name first");
  ASSERT_EQ(status, 0) << out;
  const std::string toml = read_file(folder_ / "other.toml");
  EXPECT_THAT(toml, AllOf(HasSubstr("\nkind = \"transformer\"\n"), HasSubstr("\ncorpus = \"made\"\n"),
                          HasSubstr("\noutput = \"runs/first\"\n"), Not(HasSubstr("distance_bias_window"))));
  EXPECT_FALSE(fs::exists(folder_ / "other-corpus"));
}

TEST_F(Init, ExistingFiles_AreNotReplacedWithoutForce) {
  write_file_atomic(folder_ / "mine.toml", "mine");
  const auto [status, out] = lazy("init text --output mine.toml");
  EXPECT_EQ(status, 2);
  EXPECT_THAT(
      out, IsMessage("lazy: init: mine.toml: already exists; choose another --output, or replace it with --force\n"));
  EXPECT_EQ(read_file(folder_ / "mine.toml"), "mine");
  EXPECT_FALSE(fs::exists(folder_ / "mine-corpus"));
}

TEST_F(Init, InvalidInput_GivesAOneLineError) {
  const auto [json_status, json] = lazy("init text --output my.json");
  EXPECT_EQ(json_status, 2);
  EXPECT_THAT(json, Names({"init", "--output", ".toml", "my.json"}));
  const auto [none_status, none] = lazy("init none --output my.toml");
  EXPECT_EQ(none_status, 2);
  EXPECT_THAT(none, IsMessage("lazy: data: none: no such file or folder\n"));
  write_file_atomic(folder_ / "short.txt", "Too short to learn from.\n");
  const auto [status, out] = lazy("init short.txt --output my.toml");
  EXPECT_EQ(status, 2);
  EXPECT_THAT(out, Names({"init", 256}));
}

}  // namespace
}  // namespace lazy
