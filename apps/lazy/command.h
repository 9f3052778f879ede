// Functions for subcommands in addition to CLI11: registration of a subcommand, checks of option values, and the
// command line as text. Each subcommand is one source file that ends with
//   LAZY_COMMAND(train, "Train a model from a configuration", [](CLI::App& command) { ... command.callback(...); });
#pragma once
#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lazy::cli {

// Option checks: kPositive accepts numbers above 0, kNonNegative also accepts 0. The corresponding checks of CLI11
// print the largest double in their error messages.
extern const CLI::Validator kPositive, kNonNegative;

// Returns an option check: the value must be one of `values`.
CLI::Validator one_of(const std::vector<std::string>& values);
// Returns an option check that accepts every value. `values` are only suggestions for shell completion.
CLI::Validator suggestions(const std::vector<std::string>& values);

// Adds an option that may be given several times, with one value each.
template <typename T>
CLI::Option* add_repeated_option(CLI::App& command, const std::string& name, std::vector<T>& values,
                                 const std::string& help) {
  return command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

// The information that --help prints about a command, as data for shell completion and `lazy help`.
struct OptionDescription {
  std::vector<std::string> names;  // with leading dashes; empty for a positional argument
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices;  // the values passed to one_of() or suggestions()
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

CLI::App& root(CLI::App& command);  // returns the command `lazy` to which the subcommand belongs

struct Subcommand {
  std::string help;
  std::function<void(CLI::App&)> set_up;
};

std::map<std::string, Subcommand>& subcommands();

// Adds --download, for commands that call the functions of model_path.h.
void add_download_option(CLI::App& command, bool& download);

// Returns the argument with shell quoting if the shell would otherwise change it.
std::string shell_word(const std::string& text);

// Values of GOMP_SPINCOUNT for which threads spin for about 10 us (training) and 50 us (serving) before they sleep.
// Serving spins longer, because generating a token takes many short matrix products, and waking up threads between two
// products takes time.
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
