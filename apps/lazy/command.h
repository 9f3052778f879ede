// The interface of subcommands to the command line parser. A subcommand is one file that ends with
//   LAZY_COMMAND(train, "Train a model from a configuration", [](Command command) { ... command.callback(...); });
// Command and Option are handles to CLI11's objects. Only command.cc and main.cc include CLI11, because its headers
// take several seconds to compile per file.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lazy::cli {

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  Option show_default() const;  // shows the variable's current value in --help
  Option group(const std::string& name) const;
  Option one_of(const std::vector<std::string>& values) const;
  Option suggests(const std::vector<std::string>& values) const;  // for completion; other values are accepted too
  Option positive() const;
  Option non_negative() const;
  Option range(int low, int high) const;
  Option range(double low, double high) const;
  Option existing_file() const;
  Option byte_size() const;        // accepts values such as 4096, 64kb and 4GiB
  Option comma_separated() const;  // one argument has several values
  Option repeatable() const;       // may be given several times, with one value each
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;

 private:
  CLI::Option* option_;
};

// The information of --help about a command, for shell completion and `lazy help`.
struct OptionDescription {
  std::vector<std::string> names;  // with leading dashes; empty for a positional argument
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices;  // values of one_of() and suggests()
};
struct CommandDescription {
  std::string name, help;
  std::vector<OptionDescription> options;
  std::vector<CommandDescription> subcommands;
};

// The types of variables that an option may set; command.cc instantiates add_option for each.
template <typename T, typename... Types>
concept OneOf = (std::is_same_v<T, Types> || ...);
template <typename T>
concept OptionValue = OneOf < T,
        std::string, std::vector<std::string>, std::filesystem::path, std::vector<std::filesystem::path>, int64_t,
        std::vector<int64_t>,
double, std::vector<double>, int, uint64_t > ;

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}
  // The variable must exist until the callback has run.
  template <OptionValue T>
  Option add_option(const std::string& name, T& value, const std::string& help) const;
  Option add_option(const std::string& name, const std::string& help) const;  // for values_in_order()
  Option add_flag(const std::string& name, bool& value, const std::string& help) const;
  Command add_subcommand(const std::string& name, const std::string& help) const;
  Command add_exclusive_group(const std::string& name, const std::string& help) const;  // exactly one option is given
  void require_subcommand() const;
  void footer(const std::string& text) const;
  void callback(std::function<void()> run) const;

  // The following functions are valid after parsing.
  size_t count(const std::string& option) const;
  // Option names and values in the order of the command line.
  std::vector<std::pair<std::string, std::string>> values_in_order() const;
  // Returns the command line with quoting for a shell and without --json, for results and reports. The order of the
  // arguments is preserved.
  std::string line() const;

  Command root() const;                               // the program itself
  Command subcommand(const std::string& name) const;  // must exist
  CommandDescription describe() const;
  std::string usage() const;  // what --help prints

 private:
  CLI::App* app_;
};

struct Subcommand {
  std::string help;
  std::function<void(Command)> set_up;
};

std::map<std::string, Subcommand>& subcommands();

// Adds --download, for commands that call the functions of model_path.h.
void add_download_option(Command command, bool& download);

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
  Registration(const char* name, const char* help, std::function<void(Command)> set_up) {
    subcommands()[name] = {help, std::move(set_up)};
  }
};

}  // namespace lazy::cli

#define LAZY_COMMAND(name, help, ...) \
  static const ::lazy::cli::Registration registration_##name(#name, help, __VA_ARGS__)
