// Fuzzes the parser of the command lines of some commands. The input has one word per line. The command line is parsed,
// but no command runs.
#include "apps/lazy/command.h"

#include <algorithm>

#include "core/text.h"
#include "target.h"

using namespace lazy;

// This exception is thrown when parsing is complete, before a command would run.
struct Parsed {};

LAZY_FUZZ_TARGET(command_line) {
  CLI::App app{"Lazy Attention", "lazy"};
  app.require_subcommand(1);
  app.fallthrough();
  int threads = 0;
  bool verbose = false;
  app.add_option("--threads", threads, "CPU threads")->check(CLI::PositiveNumber);
  app.add_flag("-v,--verbose", verbose, "Print debugging messages");
  for (const auto& [name, command] : cli::subcommands()) {
    command.set_up(*app.add_subcommand(name, command.help));
  }
  app.parse_complete_callback([] { throw Parsed(); });
  std::vector<std::string> words = split(input, '\n');
  words.resize(std::min<size_t>(words.size(), 40));
  // cut each word at a NUL character, which an argument cannot contain
  for (std::string& word : words) word = word.c_str();
  std::reverse(words.begin(), words.end());  // CLI11 expects the arguments in reverse order
  try {
    app.parse(words);
  } catch (const Parsed&) {
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return;  // --help ends parsing with exit code 0
    fuzz::require(*e.what() != '\0', "an error has a message");
  }
}
