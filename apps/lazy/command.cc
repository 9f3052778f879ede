#include "command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/file.h"
#include "core/text.h"

namespace lazy::cli {

namespace {

// The allowed values of each option. CLI11 stores them inside a validator, which cannot return them.
std::map<const CLI::Option*, std::vector<std::string>>& choices() {
  static std::map<const CLI::Option*, std::vector<std::string>> instance;
  return instance;
}

// Requires a number above 0, or from 0 on. CLI11's own checks print the largest double in their messages.
void require_number(CLI::Option* option, bool allow_zero) {
  const auto check = [allow_zero](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && (value > 0 || (allow_zero && value == 0))) return "";
    return std::string("expected a number ") + (allow_zero ? "of 0 or more" : "above 0") + ", found '" + text + "'";
  };
  option->check(check, allow_zero ? "NONNEGATIVE" : "POSITIVE");
}

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::show_default() const { return Option(option_->capture_default_str()); }
Option Option::group(const std::string& name) const { return Option(option_->group(name)); }
Option Option::one_of(const std::vector<std::string>& values) const {
  choices()[option_] = values;
  return Option(option_->check(CLI::IsMember(values)));
}
Option Option::suggests(const std::vector<std::string>& values) const {
  choices()[option_] = values;
  return *this;
}
Option Option::positive() const {
  require_number(option_, false);
  return *this;
}
Option Option::non_negative() const {
  require_number(option_, true);
  return *this;
}
Option Option::range(int low, int high) const { return Option(option_->check(CLI::Range(low, high))); }
Option Option::range(double low, double high) const { return Option(option_->check(CLI::Range(low, high))); }
Option Option::existing_file() const { return Option(option_->check(CLI::ExistingFile)); }
Option Option::byte_size() const { return Option(option_->transform(CLI::AsSizeValue(false))); }
Option Option::comma_separated() const { return Option(option_->delimiter(',')); }
Option Option::repeatable() const { return Option(option_->expected(1)->take_all()->allow_extra_args(false)); }
Option Option::needs(const Option& other) const { return Option(option_->needs(other.option_)); }
Option Option::excludes(const Option& other) const { return Option(option_->excludes(other.option_)); }

template <OptionValue T>
Option Command::add_option(const std::string& name, T& value, const std::string& help) const {
  return Option(app_->add_option(name, value, help));
}

#define LAZY_OPTION_TYPE(...)                                                                                   \
  template Option Command::add_option<__VA_ARGS__>(const std::string&, __VA_ARGS__&, const std::string&) const; \
  template Option Command::add_option<std::vector<__VA_ARGS__>>(const std::string&, std::vector<__VA_ARGS__>&,  \
                                                                const std::string&) const
LAZY_OPTION_TYPE(std::string);
LAZY_OPTION_TYPE(std::filesystem::path);
LAZY_OPTION_TYPE(int64_t);
LAZY_OPTION_TYPE(double);
template Option Command::add_option<int>(const std::string&, int&, const std::string&) const;
template Option Command::add_option<uint64_t>(const std::string&, uint64_t&, const std::string&) const;

Option Command::add_option(const std::string& name, const std::string& help) const {
  return Option(app_->add_option(name, help)->type_name("TEXT"));
}

Option Command::add_flag(const std::string& name, bool& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}

Command Command::add_subcommand(const std::string& name, const std::string& help) const {
  return Command(app_->add_subcommand(name, help));
}

Command Command::add_exclusive_group(const std::string& name, const std::string& help) const {
  CLI::Option_group* group = app_->add_option_group(name, help);
  group->require_option(1);
  return Command(group);
}

void Command::require_subcommand() const { app_->require_subcommand(1); }
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::callback(std::function<void()> run) const { app_->callback(std::move(run)); }

size_t Command::count(const std::string& option) const { return app_->count(option); }

std::vector<std::pair<std::string, std::string>> Command::values_in_order() const {
  std::vector<std::pair<std::string, std::string>> out;
  std::map<const CLI::Option*, size_t> seen;  // parse_order() lists a repeated option once per value
  for (const CLI::Option* option : app_->parse_order()) {
    const size_t next = seen[option]++;
    if (next < option->results().size()) out.emplace_back(option->get_name(), option->results()[next]);
  }
  return out;
}

std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("_-./:=@%+,", c); };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string Command::line() const {
  std::string line = "lazy " + app_->get_name();
  std::map<const CLI::Option*, size_t> given, written;  // occurrences: in total, and before this one
  for (const CLI::Option* option : app_->parse_order()) ++given[option];
  for (const CLI::Option* option : app_->parse_order()) {
    const size_t n = written[option]++;
    if (option->get_name() == "--json") continue;
    const std::string name = option->get_positional() ? "" : " " + option->get_name();
    if (option->get_items_expected_max() == 0) {  // a flag
      if (n == 0) line += name;
      continue;
    }
    // Either each occurrence has one value, or the first occurrence is written with all values.
    std::vector<std::string> values = option->results();
    if (values.size() == given[option]) {
      values = {values[n]};
    } else if (n > 0) {
      continue;
    }
    const char delimiter = option->get_delimiter();
    for (size_t i = 0; i < values.size(); ++i) {
      line += i > 0 && delimiter != '\0' ? std::string(1, delimiter) : name + " ";
      line += shell_word(values[i]);
    }
  }
  return line;
}

Command Command::root() const {
  CLI::App* app = app_;
  while (app->get_parent()) app = app->get_parent();
  return Command(app);
}

CommandDescription Command::describe() const {
  CommandDescription out{app_->get_name(), app_->get_description()};
  for (const CLI::Option* option : app_->get_options()) {
    OptionDescription& description = out.options.emplace_back();
    for (const std::string& name : option->get_lnames()) description.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) description.names.push_back("-" + name);
    description.help = option->get_description();
    description.takes_value = option->get_items_expected_max() > 0;
    if (const auto found = choices().find(option); found != choices().end()) description.choices = found->second;
  }
  for (CLI::App* child : app_->get_subcommands([](const CLI::App*) { return true; })) {
    CommandDescription description = Command(child).describe();
    if (!child->get_name().empty()) {
      out.subcommands.push_back(std::move(description));
    } else {  // a group: its options belong to this command
      for (OptionDescription& option : description.options) out.options.push_back(std::move(option));
    }
  }
  return out;
}

Command Command::subcommand(const std::string& name) const { return Command(app_->get_subcommand(name)); }
std::string Command::usage() const { return app_->help(app_->get_parent() ? app_->get_parent()->get_name() : ""); }

std::map<std::string, Subcommand>& subcommands() {
  static std::map<std::string, Subcommand> instance;
  return instance;
}

void add_download_option(Command command, bool& download) {
  command.add_flag(
      "--download", download,
      "Accept the name of a model on the Hugging Face Hub (org/name) instead of a path, and download it with Python's "
      "huggingface_hub");
}

void share_cores(int spins) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  // argv[0] is a different program if a dynamic linker or an emulator was named on the command line.
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || program.filename() != "lazy") return;
  std::vector<std::string> arguments = split(read_file("/proc/self/cmdline"), '\0');
  arguments.pop_back();  // the text after the last zero byte is not an argument
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::setenv("GOMP_SPINCOUNT", std::to_string(spins).c_str(), 1);
  // execv() returns only if it fails. The program then continues with the default spin count of OpenMP, which is slower
  // if other processes use the cores.
  ::execv(program.c_str(), argv.data());
}

}  // namespace lazy::cli
