// The interface of subcommands to the command line parser. A subcommand is one file that ends with
//   LAZY_COMMAND(train, "Train a model from a configuration", [](Command command) { ... command.callback(...); });
// Command and Option are handles to CLI11's objects. CLI11 itself is compiled in command.cc and main.cc alone: its
// headers take several seconds a file.
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
  Option show_default() const;  // the variable's present value, in --help
  Option group(const std::string& name) const;
  Option one_of(const std::vector<std::string>& values) const;
  Option suggests(const std::vector<std::string>& values) const;  // completion offers them; others are accepted
  Option positive() const;
  Option non_negative() const;
  Option range(int low, int high) const;
  Option range(double low, double high) const;
  Option existing_file() const;
  Option byte_size() const;        // 4096, 64kb, 4GiB
  Option comma_separated() const;  // one argument holds several values
  Option repeatable() const;       // may be given several times, with one value each
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;

 private:
  CLI::Option* option_;
};

// What --help knows of a command, for shell completion and `lazy help`.
struct OptionDescription {
  std::vector<std::string> names;  // with their dashes; empty: a positional argument
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices;  // of one_of and suggests
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
  // The variable must live as long as the callback.
  template <OptionValue T>
  Option add_option(const std::string& name, T& value, const std::string& help) const;
  Option add_option(const std::string& name, const std::string& help) const;  // see values_in_order
  Option add_flag(const std::string& name, bool& value, const std::string& help) const;
  Command add_subcommand(const std::string& name, const std::string& help) const;
  Command add_exclusive_group(const std::string& name, const std::string& help) const;  // exactly one of its options
  void require_subcommand() const;
  void footer(const std::string& text) const;
  void callback(std::function<void()> run) const;

  // After parsing.
  size_t count(const std::string& option) const;
  // Option names and values in the order of the command line.
  std::vector<std::pair<std::string, std::string>> values_in_order() const;
  // The command as it was given, in its order and quoted for a shell, without --json: for results and reports.
  std::string line() const;

  Command root() const;                               // the whole program
  Command subcommand(const std::string& name) const;  // which exists
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

// --download, for commands that call the functions of model_path.h.
void add_download_option(Command command, bool& download);

// One word of a shell's command line: quoted where a shell would change it.
std::string shell_word(const std::string& text);

// 10 and 50 us. A token has many short products, and threads that sleep between two of them have to be woken.
constexpr int kTrainingSpins = 1000, kServingSpins = 5000;

// For commands that compute for long; call it before anything else. libgomp's threads spin at a barrier for up to 3 ms
// (GOMP_SPINCOUNT 300000) before they give up their core, so that one other busy process takes two thirds of the speed
// of training on two cores. libgomp reads the variable when it is loaded: if neither it nor OMP_WAIT_POLICY is set,
// this program executes itself again with `spins`.
void share_cores(int spins = kTrainingSpins);

struct Registration {
  Registration(const char* name, const char* help, std::function<void(Command)> set_up) {
    subcommands()[name] = {help, std::move(set_up)};
  }
};

}  // namespace lazy::cli

#define LAZY_COMMAND(name, help, ...) \
  static const ::lazy::cli::Registration registration_##name(#name, help, __VA_ARGS__)
