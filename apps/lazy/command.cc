#include "command.h"

#include <unistd.h>

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

// CLI11 does not return the values of CLI::IsMember, so one_of() and suggestions() store them as the validator's name.
constexpr char kSeparator = '\n';

CLI::Validator number_check(bool allow_zero) {
  const auto check = [allow_zero](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && (value > 0 || (allow_zero && value == 0))) return "";
    return std::string("expected a number ") + (allow_zero ? "of 0 or more" : "above 0") + ", found '" + text + "'";
  };
  return {check, allow_zero ? "NONNEGATIVE" : "POSITIVE"};
}

// Returns the values that one_of() or suggestions() allows or suggests for an option.
std::vector<std::string> choices(CLI::Option* option) {
  try {
    const std::string values = option->get_validator(0)->get_name();
    return values.empty() ? std::vector<std::string>() : split(values, kSeparator);
  } catch (const CLI::OptionNotFound&) {
    return {};  // get_validator() throws if the option has no validator
  }
}

}  // namespace

const CLI::Validator kPositive = number_check(false), kNonNegative = number_check(true);

CLI::Validator one_of(const std::vector<std::string>& values) {
  return CLI::IsMember(values).name(CLI::detail::join(values, std::string(1, kSeparator)));
}

CLI::Validator suggestions(const std::vector<std::string>& values) {
  return {[](const std::string&) { return std::string(); }, "", CLI::detail::join(values, std::string(1, kSeparator))};
}

std::vector<std::pair<std::string, std::string>> values_in_order(const CLI::App& command) {
  std::vector<std::pair<std::string, std::string>> out;
  std::map<const CLI::Option*, size_t> seen;  // parse_order() lists an option with several values once per value
  for (const CLI::Option* option : command.parse_order()) {
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

std::string command_line(const CLI::App& command) {
  std::string line = "lazy " + command.get_name();
  // number of occurrences of each option: in total, and written so far
  std::map<const CLI::Option*, size_t> given, written;
  for (const CLI::Option* option : command.parse_order()) ++given[option];
  for (const CLI::Option* option : command.parse_order()) {
    const size_t n = written[option]++;
    if (option->get_name() == "--json") continue;
    const std::string name = option->get_positional() ? "" : " " + option->get_name();
    if (option->get_items_expected_max() == 0) {  // a flag
      if (n == 0) line += name;
      continue;
    }
    // If each occurrence has one value, write this value. Otherwise write all values after the first occurrence.
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

CLI::App& root(CLI::App& command) {
  CLI::App* app = &command;
  while (app->get_parent()) app = app->get_parent();
  return *app;
}

CommandDescription describe(CLI::App& command) {
  CommandDescription out{command.get_name(), command.get_description()};
  for (CLI::Option* option : command.get_options()) {
    OptionDescription& description = out.options.emplace_back();
    for (const std::string& name : option->get_lnames()) description.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) description.names.push_back("-" + name);
    description.help = option->get_description();
    description.takes_value = option->get_items_expected_max() > 0;
    description.choices = choices(option);
  }
  for (CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) {
    CommandDescription description = describe(*child);
    if (!child->get_name().empty()) {
      out.subcommands.push_back(std::move(description));
    } else {  // an option group is not a subcommand: its options belong to this command
      for (OptionDescription& option : description.options) out.options.push_back(std::move(option));
    }
  }
  return out;
}

std::map<std::string, Subcommand>& subcommands() {
  static std::map<std::string, Subcommand> instance;
  return instance;
}

void add_download_option(CLI::App& command, bool& download) {
  command.add_flag(
      "--download", download,
      "Accept the name of a model on the Hugging Face Hub (org/name) instead of a path, and download it with Python's "
      "huggingface_hub");
}

void share_cores(int spins) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  // Execute /proc/self/exe and not argv[0]: argv[0] is the dynamic linker or the emulator if one starts this program.
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || program.filename() != "lazy") return;
  std::vector<std::string> arguments = split(read_file("/proc/self/cmdline"), '\0');
  arguments.pop_back();  // every argument ends with a zero byte, so split() returns an empty text after the last one
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::setenv("GOMP_SPINCOUNT", std::to_string(spins).c_str(), 1);
  // execv() returns only if it fails. The program then continues with the default spin count of OpenMP, which is slower
  // if other processes use the cores.
  ::execv(program.c_str(), argv.data());
}

}  // namespace lazy::cli
