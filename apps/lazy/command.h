// What the subcommands add to CLI11: how a subcommand registers itself, checks of options, and the command line as
// text. A subcommand is one file that ends with
//   LAZY_COMMAND(train, "Train a model from a configuration", [](CLI::App& command) { ... command.callback(...); });
#pragma once
#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lazy::cli {

// Checks of numbers: above 0; of 0 or more. CLI11's own checks print the largest double in their messages.
extern const CLI::Validator kPositive, kNonNegative;

// The value must be one of `values`.
CLI::Validator one_of(const std::vector<std::string>& values);
// Values for shell completion; other values are accepted too.
CLI::Validator suggestions(const std::vector<std::string>& values);

// Adds an option that may be given several times, with one value each.
template <typename T>
CLI::Option* add_repeated_option(CLI::App& command, const std::string& name, std::vector<T>& values,
                                 const std::string& help) {
  return command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

// The information of --help about a command, for shell completion and `lazy help`.
struct OptionDescription {
  std::vector<std::string> names;  // with leading dashes; empty for a positional argument
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices;  // values of one_of() and suggestions()
};
struct CommandDescription {
  std::string name, help;
  std::vector<OptionDescription> options;
  std::vector<CommandDescription> subcommands;
};

CommandDescription describe(CLI::App& command);

// The following functions are valid after parsing.
// Returns option names and values in the order of the command line.
std::vector<std::pair<std::string, std::string>> values_in_order(const CLI::App& command);
// Returns the command line with quoting for a shell and without --json, for results and reports. The order of the
// arguments is preserved.
std::string command_line(const CLI::App& command);

CLI::App& root(CLI::App& command);  // the program itself

struct Subcommand {
  std::string help;
  std::function<void(CLI::App&)> set_up;
};

std::map<std::string, Subcommand>& subcommands();

// Adds --download, for commands that call the functions of model_path.h.
void add_download_option(CLI::App& command, bool& download);

// Quotes one argument for a shell, if the shell would change it.
std::string shell_word(const std::string& text);

// Spin counts of about 10 and 50 us. Generating a token takes many short matrix products, and waking up threads that
// have gone to sleep between two products takes time.
constexpr int kTrainingSpins = 1000, kServingSpins = 5000;

// Lets long computations share the cores with other processes. It must be the first call of a command. By default,
// libgomp's threads spin at a barrier for up to 3 ms (GOMP_SPINCOUNT 300000) before they give up their core. A single
// busy process of another program then reduces the speed of training on two cores by two thirds. libgomp reads the
// variable only when it is loaded: if neither GOMP_SPINCOUNT nor OMP_WAIT_POLICY is set, this program executes itself
// again with GOMP_SPINCOUNT set to `spins`.
void share_cores(int spins = kTrainingSpins);

struct Registration {
  Registration(const char* name, const char* help, std::function<void(CLI::App&)> set_up) {
    subcommands()[name] = {help, std::move(set_up)};
  }
};

}  // namespace lazy::cli

#define LAZY_COMMAND(name, help, ...) \
  static const ::lazy::cli::Registration registration_##name(#name, help, __VA_ARGS__)
