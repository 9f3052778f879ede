// Tests general features of the program: --version, help, completion, colors, `lazy doctor`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/file.h"
#include "core/text.h"
#include "support/error_of.h"
#include "support/run_command.h"

namespace lazy {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class CommandLine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(LAZY_BINARY)) GTEST_SKIP() << LAZY_BINARY << " is not built";
  }
  static std::pair<int, std::string> lazy(const std::string& arguments) {
    return run_command(LAZY_BINARY " " + arguments);
  }
  static bool has(const std::string& program) { return run_command("command -v " + program).first == 0; }
  // Runs the program on a new terminal, with the command `script` of util-linux.
  static std::string on_terminal(const std::string& variables, const std::string& arguments) {
    return run_command("TERM=xterm " + variables + " script -qec '" LAZY_BINARY " " + arguments + "' /dev/null").second;
  }
};

TEST_F(CommandLine, Version_IsPrinted) {
  const auto [status, out] = lazy("--version");
  EXPECT_EQ(status, 0);
  EXPECT_THAT(out, ContainsRegex("^lazy [0-9]+\\.[0-9]+\\.[0-9]+ \\((commit [0-9a-f]+(-dirty)?, )?LibTorch "
                                 "[0-9]+\\.[0-9]+\\.[0-9]+[^)]*\\)\n$"));
}

// Installs the program as `make install` does.
TEST_F(CommandLine, InstalledProgram_Runs) {
  if (!has("cmake")) GTEST_SKIP() << "cmake is not installed";
  const auto build = std::filesystem::path(LAZY_BINARY).parent_path();
  const auto prefix = std::filesystem::temp_directory_path() / ("lazy-install-" + std::to_string(::getpid()));
  const auto [status, out] =
      run_command("cmake --install " + build.string() + " --component program --prefix " + prefix.string());
  EXPECT_EQ(status, 0) << out;
  EXPECT_EQ(run_command((prefix / "bin/lazy").string() + " --version"), lazy("--version"));
  // The installed program must find its models and recipes from any working directory.
  EXPECT_EQ(run_command("cd / && " + (prefix / "bin/lazy").string() + " info lazy-340m+15b").first, 0);
  // The operators are loaded from the installed files and not from the build folder, which may have been deleted.
  const auto [ldd_status, libraries] = run_command("ldd " + (prefix / "bin/lazy").string());
  EXPECT_EQ(ldd_status, 0);
  EXPECT_THAT(libraries, AllOf(HasSubstr(prefix.string() + "/bin/../lib/lazy/liblazy_ops.so"),
                               Not(HasSubstr(build.string() + "/liblazy"))));
  std::filesystem::remove_all(prefix);
}

TEST_F(CommandLine, Help_BeginsWithTheFirstSteps) {
  const auto [status, out] = lazy("--help");
  EXPECT_EQ(status, 0);
  // CLI11's default heading must not occur: every command belongs to a section
  EXPECT_THAT(out, Not(HasSubstr("\nSubcommands:\n")));
  size_t last = 0;
  for (const char* line : {"\nFirst steps:\n", "\n  doctor ", "\n  train ", "\n  generate ", "\n  eval ", "\n  chat ",
                           "\n  sinks ", "\n  bench "}) {
    const size_t at = out.find(line);
    ASSERT_NE(at, std::string::npos) << line;
    EXPECT_GT(at, last) << line;
    last = at;
  }
  EXPECT_THAT(lazy("data --help").second, HasSubstr("\nSubcommands:\n  prepare "));
}

TEST_F(CommandLine, Help_ListsGuides) {
  const auto [status, out] = lazy("help");
  EXPECT_EQ(status, 0);
  EXPECT_THAT(out, Names({"configuration", "training"}));
  EXPECT_THAT(out, HasSubstr("lazy --help"));
}

TEST_F(CommandLine, HelpOfAGuide_IsWrappedToTheWidth) {
  const auto [status, out] = lazy("help configuration");
  EXPECT_EQ(status, 0);
  EXPECT_THAT(out, AllOf(HasSubstr("\n  - `hidden_size` ("), HasSubstr("`lazy help mixers`"), Not(HasSubstr("](")),
                         Not(HasSubstr("\033"))));
  // Lines may have more than 80 columns only if they are code.
  bool code = false;
  for (const std::string& line : split(out, '\n')) {
    code = line.starts_with("    ") && line.find_first_not_of(' ') == 4;
    if (!code) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
}

TEST_F(CommandLine, Help_PrintsEveryGuide) {
  int guides = 0;
  for (const std::string& line : split(lazy("help").second, '\n')) {
    if (line.empty()) break;  // the list of guides ends here; the list of commands follows
    if (!line.starts_with("  ")) continue;
    const std::string topic = line.substr(2, line.find(' ', 2) - 2);
    const auto [status, out] = lazy("help " + topic);
    EXPECT_EQ(status, 0) << topic;
    EXPECT_GT(out.size(), 500u) << topic;
    const std::string docs = LAZY_SOURCE_DIR "/docs/";
    EXPECT_TRUE(std::filesystem::exists(docs + "guides/" + topic + ".md") ||
                std::filesystem::exists(docs + "reference/" + topic + ".md"))
        << topic;
    ++guides;
  }
  EXPECT_GT(guides, 0);
}

TEST_F(CommandLine, HelpOfACommand_IsItsUsage) { EXPECT_EQ(lazy("help tokenize"), lazy("tokenize --help")); }

TEST_F(CommandLine, UnknownTopic_IsAnError) {
  const auto [status, out] = lazy("help sinkz");
  EXPECT_EQ(status, 2);
  EXPECT_THAT(out, Names({"help", "sinkz", "sinks"}));
}

TEST_F(CommandLine, MistypedCommand_IsNamedInTheError) {
  const auto [status, out] = lazy("traim run.toml");
  EXPECT_EQ(status, 2);
  EXPECT_THAT(out, IsMessage("lazy: expected a command, found 'traim'; did you mean 'train'?\n"
                             "Run `lazy --help` for the usage.\n"));
  const auto [nested_status, nested] = lazy("data prepar text --output corpus");
  EXPECT_EQ(nested_status, 2);
  EXPECT_THAT(nested, Names({"prepar", "prepare", std::string("lazy data --help")}));
}

TEST_F(CommandLine, InvalidCommandLine_ErrorNamesTheHelp) {
  for (const auto& [arguments, help] :
       {std::pair("data", "lazy data --help"), std::pair("data prepare --outptu corpus", "lazy data prepare --help")}) {
    const auto [status, out] = lazy(arguments);
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(out, Names({std::string(help)}));
  }
}

// Each unknown option is named in the order of the command line, with the option to use instead.
TEST_F(CommandLine, UnknownOptions_HaveAdvice) {
  const auto expect = [&](const std::string& arguments, const std::vector<std::string>& parts) {
    const auto [status, out] = lazy(arguments);
    EXPECT_EQ(status, 2) << arguments;
    size_t at = 0;
    for (const std::string& part : parts) {
      at = out.find(part, at);
      ASSERT_NE(at, std::string::npos) << arguments << ": " << part << " is missing or out of order in: " << out;
      at += part.size();
    }
  };
  expect("serve model --ctx-size 4096 -ngl 99 --max-num-seqs=8 --served-model-name x",
         {"--ctx-size", "--max-model-len", "-ngl", "--device", "--max-num-seqs", "--max-running", "--served-model-name",
          "NAME=FOLDER"});
  expect("serve --model model --gpu_memory_utilization 0.9",
         {"--model", "without an option", "--gpu_memory", "--cache-gib"});
  expect("serve model --api-key secret -tp 2", {"--api-key", "--api-key-file", "-tp", "one device"});
  expect("chat model -c 4096 --temp 0", {"-c", "--max-model-len", "--temp", "--temperature"});
  expect("generate model -n 5 -p x --temperture 1",
         {"-n", "--max-tokens", "-p", "--prompt", "--temperture", "--temperature"});
  expect("eval model --num_fewshot 5", {"--num_fewshot", "--num-fewshot"});
  // the error names the misspelled option, not the missing --output
  expect("data prepare text --outptu corpus", {"data prepare", "--outptu", "--output"});
  expect("train config.toml --lr 1e-3", {"train", "--lr", "--set"});
  expect("--cache-gib 2 serve model", {"--cache-gib", "after the command"});
  expect("tokenize --zzzzzzzz", {"tokenize", "--zzzzzzzz"});
  // Advice names only options that the command has, and does not repeat the values of options.
  EXPECT_THAT(lazy("tokenize --ctx-size 4096").second, Not(AnyOf(HasSubstr("--max-model-len"), HasSubstr("4096"))));
}

TEST_F(CommandLine, NumberOutOfRange_IsNamedInTheError) {
  for (const auto& [arguments, option] : {std::pair("serve model --max-model-len -5", "--max-model-len"),
                                          std::pair("serve model --max-running 0", "--max-running")}) {
    const auto [status, out] = lazy(arguments);
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(out, Names({std::string(option), std::string("0")}));
    EXPECT_LT(out.size(), 200u) << out;
  }
}

TEST_F(CommandLine, NameOnTheHub_ErrorNamesDownload) {
  for (const std::string arguments :
       {"sinks gpt2 --text x", "generate gpt2", "probe gpt2 --text x", "eval gpt2 --text x", "export gpt2 out",
        "info gpt2", "serve gpt2 --port 0", "tokenize --tokenizer gpt2"}) {
    const auto [status, out] = run_command("cd / && " LAZY_BINARY " " + arguments + " < /dev/null");
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(out, Names({std::string("hf download gpt2 --local-dir gpt2")})) << arguments;
  }
}

TEST_F(CommandLine, FolderWithoutModel_ErrorNamesWhatWasExpected) {
  const auto folder = std::filesystem::temp_directory_path() / ("lazy-no-model-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto [status, out] = lazy("generate " + folder.string());
  EXPECT_EQ(status, 2);
  EXPECT_THAT(out,
              IsMessage("lazy: generate: " + folder.string() +
                        ": expected a model folder (with config.json) or a run folder of `lazy train` (with model/ "
                        "or checkpoints/), found neither\n"));
  // the state of a run that has not saved a checkpoint yet
  std::filesystem::create_directories(folder / "checkpoints");
  const auto [begun, message] = lazy("export " + folder.string() + " out");
  EXPECT_EQ(begun, 2);
  EXPECT_THAT(message, Names({"export", folder.string(), "checkpoint"}));
  std::filesystem::remove_all(folder);
}

// Returns how bash completes the last word of a command line.
std::vector<std::string> completions(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  const std::string script = "source <(" LAZY_BINARY " completion bash)\nCOMP_WORDS=(lazy" + line +
                             ")\nCOMP_CWORD=" + std::to_string(words.size()) +
                             "\n_lazy\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const auto path = std::filesystem::temp_directory_path() / ("lazy-completion-" + std::to_string(::getpid()));
  write_file_atomic(path, script);
  const auto [status, out] = run_command("bash -u " + path.string());
  std::filesystem::remove(path);
  EXPECT_EQ(status, 0) << out;
  std::vector<std::string> lines = split(out, '\n');
  std::erase(lines, "");
  return lines;
}

TEST_F(CommandLine, BashCompletion_CompletesCommands) {
  EXPECT_THAT(completions({""}), IsSupersetOf({"train", "data", "doctor", "completion", "help", "serve"}));
  EXPECT_THAT(completions({"tok"}), UnorderedElementsAre("tokenize"));
  EXPECT_THAT(completions({"data", "p"}), UnorderedElementsAre("prepare"));
  EXPECT_THAT(completions({"data", "prepare", "--max"}), UnorderedElementsAre("--max-document"));
  // --tokenizer belongs to a group of options
  EXPECT_THAT(completions({"data", "prepare", "--tok"}), UnorderedElementsAre("--tokenizer"));
  EXPECT_THAT(completions({"generate", "--dev"}), UnorderedElementsAre("--device"));
  EXPECT_THAT(completions({"generate", "--device", ""}), UnorderedElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(completions({"generate", "--device", "=", "cu"}), UnorderedElementsAre("cuda"));
  EXPECT_THAT(completions({"generate", "--device", "cpu", "--dt"}), UnorderedElementsAre("--dtype"));
  EXPECT_THAT(completions({"train", "--recipe", "1"}), UnorderedElementsAre("10b", "10b-512", "15b"));
  EXPECT_THAT(completions({"--threads", "2", "completion", ""}), UnorderedElementsAre("bash", "zsh"));
  EXPECT_THAT(completions({"help", "run-"}), UnorderedElementsAre("run-directory"));
  // --threads is an option of the program itself, not of `train`
  EXPECT_THAT(completions({"train", "--th"}), UnorderedElementsAre("--threads"));
}

TEST_F(CommandLine, BashCompletion_CompletesFiles) {
  const std::string start = LAZY_SOURCE_DIR "/configs/repro-";
  EXPECT_THAT(completions({"train", start}),
              UnorderedElementsAre(start + "tiny.toml", start + "mask.toml", start + "mask-60m.toml"));
}

TEST_F(CommandLine, ZshCompletion_CompletesCommands) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  const auto path = std::filesystem::temp_directory_path() / ("lazy-completion-" + std::to_string(::getpid()));
  ASSERT_EQ(run_command(LAZY_BINARY " completion zsh > " + path.string()).first, 0);
  const auto [status, errors] = run_command("zsh -n " + path.string());
  EXPECT_EQ(status, 0) << errors;
  // Starts zsh on a pseudo-terminal and makes it list the completions of a line. Returns the output up to `wanted`.
  const auto complete = [&](const std::string& line, const std::string& wanted) {
    const std::string script =
        "zmodload zsh/zpty\nzpty z zsh -f -i\n"
        "zpty -w z 'PS1=; autoload -U compinit; compinit -D -u; source " +
        path.string() +
        "; LISTMAX=1000; bindkey \"^X\" list-choices; print RE\"\"ADY'\n"
        "zpty -r -m z answer '*READY*'\nzpty -w -n z $'" +
        line +
        "\\x18'\nall=\n"
        "for ((n = 0; n < 200; ++n)); do\n"
        "  zpty -r -t z answer && all+=$answer || sleep 0.1\n  [[ $all == *'" +
        wanted + "'* ]] && break\ndone\nprint -r -- $all\nzpty -d z\n";
    const auto file = path.string() + ".zsh";
    write_file_atomic(file, script);
    const std::string out = run_command("timeout 60 zsh -f " + file).second;
    std::filesystem::remove(file);
    return out;
  };
  EXPECT_THAT(complete("lazy to", "tokenize  -- "), HasSubstr("tokenize  -- "));
  EXPECT_THAT(complete("lazy data ", "prepare"), AllOf(HasSubstr("inspect"), HasSubstr("prepare")));
  EXPECT_THAT(complete("lazy generate --device ", "cuda"), AllOf(HasSubstr("auto"), HasSubstr("cuda")));
  std::filesystem::remove(path);
}

TEST_F(CommandLine, Colors_OnlyOnTerminalsThatAllowThem) {
  EXPECT_THAT(lazy("help").second, Not(HasSubstr("\033")));
  if (!has("script")) GTEST_SKIP() << "script (util-linux) is not installed";
  EXPECT_THAT(on_terminal("NO_COLOR=", "help"), HasSubstr("\033[1m"));
  EXPECT_THAT(on_terminal("NO_COLOR=1", "help"), AllOf(HasSubstr("configuration"), Not(HasSubstr("\033"))));
  // Log messages: the name of the level is colored.
  const auto folder = std::filesystem::temp_directory_path() / ("lazy-colors-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  write_file_atomic(folder / "a.txt", "one two three\n");
  const std::string prepare = "data prepare " + (folder / "a.txt").string() + " --force --tokenizer bytes --output " +
                              (folder / "corpus").string();
  EXPECT_THAT(on_terminal("NO_COLOR=", prepare), ContainsRegex("\033\\[[0-9]+m"));
  EXPECT_THAT(on_terminal("NO_COLOR=1", prepare), AllOf(HasSubstr("info"), Not(ContainsRegex("\033\\[[0-9]*m"))));
  EXPECT_THAT(lazy(prepare).second, AllOf(HasSubstr("info"), Not(HasSubstr("\033"))));
  std::filesystem::remove_all(folder);
}

TEST_F(CommandLine, Doctor_Succeeds) {
  const auto [status, out] = lazy("doctor");
  EXPECT_EQ(status, 0) << out;
  EXPECT_THAT(out, AllOf(StartsWith("lazy "), HasSubstr("ok      attention (CPU)")));
}

TEST_F(CommandLine, Doctor_NamesMissingPartsAndCommands) {
  const auto [status, out] = run_command("LAZY_PYTHON=/nowhere/python " LAZY_BINARY " doctor --json");
  EXPECT_EQ(status, 0) << out;  // the exit code is 0, because only optional parts are missing
  const auto json = nlohmann::json::parse(out);
  EXPECT_TRUE(json["works"].get<bool>());
  EXPECT_TRUE(json["attention_kernels"]["cpu"].contains("elastic"));
  std::map<std::string, nlohmann::json> missing;
  for (const auto& check : json["checks"]) {
    if (check["state"] == "missing") missing[check["subject"]] = check;
  }
  EXPECT_THAT(missing["Python"].dump(), AllOf(HasSubstr("/nowhere/python"), HasSubstr("LAZY_PYTHON")));
  EXPECT_THAT(missing["chat templates"].dump(), HasSubstr("jinja2"));
  EXPECT_THAT(missing["Parquet files"].dump(), HasSubstr("pyarrow"));
}

// With OMP_DISPLAY_ENV, libgomp prints its settings whenever it is loaded. `lazy serve` sets the variable for the spin
// count and then executes itself again, so the settings are printed twice. The second spin count must be lower.
TEST_F(CommandLine, Serve_SetsTheSpinCountOfThreads) {
  const auto [status, told] =
      run_command("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose " LAZY_BINARY
                  " serve /no/model 2>&1 | grep -o \"SPINCOUNT = '[0-9]*'\" | grep -o '[0-9]*'");
  std::istringstream counts(told);
  int64_t own = 0, serving = 0;
  counts >> own >> serving;
  EXPECT_GT(serving, 0) << told;
  EXPECT_LT(serving, own) << told;
}

}  // namespace
}  // namespace lazy
