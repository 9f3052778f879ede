// `lazy`: one binary to train, evaluate, inspect and run models. Each subcommand is a file in this folder.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "build_info.h"
#include "command.h"
#include "guides.h"
#include "unknown_options.h"

#include "core/error.h"
#include "core/known_names.h"
#include "core/log.h"
#include "model/device.h"
#include "model/torch_build.h"

namespace {

// The sections of `lazy --help`, in order. A test fails if a command is missing in this list.
const std::vector<std::pair<const char*, std::vector<std::string>>> kSections{
    {"First steps", {"doctor", "init", "data", "train", "generate", "report", "help"}},
    {"Evaluate, serve and convert models",
     {"eval", "chat", "serve", "convert", "uptrain", "export", "info", "tokenize"}},
    {"Study attention", {"sinks", "probe", "lab", "measure"}},
    {"Further commands", {"bench", "completion", "repro"}}};

// Adds the commands in the order of kSections, followed by commands that kSections does not list.
void add_commands(CLI::App& app) {
  auto commands = lazy::cli::subcommands();
  const auto add = [&](const std::string& name, const lazy::cli::Subcommand& command) {
    CLI::App* added = app.add_subcommand(name, command.help);
    command.set_up(*added);
    const auto has_name = [&](const lazy::cli::Guide& guide) { return guide.topic == name; };
    if (std::any_of(lazy::cli::kGuides.begin(), lazy::cli::kGuides.end(), has_name)) {
      added->footer(added->get_footer() + "\nGuide: lazy help " + name);
    }
    return added;
  };
  for (const auto& [section, names] : kSections) {
    for (const std::string& name : names) {
      // The section is set after the command has added its own subcommands, because they would inherit the section.
      if (const auto found = commands.extract(name)) add(name, found.mapped())->group(section);
    }
  }
  for (const auto& [name, command] : commands) add(name, command);
}

// Returns the path of the selected command, for example "data prepare".
std::string command_path(const CLI::App& command) {
  const std::string above = command.get_parent() ? command_path(*command.get_parent()) : "";
  return command.get_parent() ? above + (above.empty() ? "" : " ") + command.get_name() : "";
}

// Returns the names of the options that the command and its parents have.
std::vector<std::string> option_names(CLI::App& command) {
  std::vector<std::string> names;
  for (CLI::App* at = &command; at; at = at->get_parent()) {
    for (const auto& option : lazy::cli::describe(*at).options) {
      names.insert(names.end(), option.names.begin(), option.names.end());
    }
  }
  return names;
}

// Returns the error message for an invalid command line. For a mistyped command, CLI11 only says that a command is
// required, and it lists unknown options in reverse order.
std::string explain(CLI::App& app, const CLI::ParseError& error) {
  CLI::App* last = &app;
  while (!last->get_subcommands().empty()) last = last->get_subcommands().front();
  const std::string path = command_path(*last);
  std::string problem = error.what();
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  const bool no_command = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
                          last->get_require_subcommand_min() > 0;
  if (no_command && !words.empty() && !words.front().starts_with('-')) {
    std::vector<std::string> known;
    for (const CLI::App* command : last->get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(command->get_name());
    }
    problem = fmt::format("expected a command, found '{}'{}", words.front(), lazy::did_you_mean(words.front(), known));
  } else if (const auto unknown = lazy::cli::describe_unknown_options(words, option_names(*last)); !unknown.empty()) {
    problem = unknown;
  }
  return fmt::format("lazy: {}{}\nRun `lazy {}{}--help` for the usage.\n", path.empty() ? "" : path + ": ", problem,
                     path, path.empty() ? "" : " ");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Lazy Attention: train, evaluate and analyze models with sparse attention normalizers", "lazy"};
  app.require_subcommand(1);
  app.fallthrough();
  int threads = 0;
  bool verbose = false;
  app.add_option("--threads", threads, "CPU threads (default: all cores)")->check(lazy::cli::kPositive);
  app.add_flag("-v,--verbose", verbose, "Print debugging messages");
  app.set_version_flag("--version", lazy::cli::version_line, "Print the version and exit");
  app.parse_complete_callback([&] {
    if (threads > 0) lazy::set_thread_count(threads);
    lazy::log::set_level(verbose ? 0 : 1);
  });
  add_commands(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    // CLI11 throws these exceptions with exit code 0 for --help and --version
    if (e.get_exit_code() == 0) return app.exit(e);
    fmt::print(stderr, "{}", explain(app, e));
    return 2;
  } catch (const lazy::Error& e) {
    fmt::print(stderr, "lazy: {}\n", e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    fmt::print(stderr, "lazy: internal error: {}\n", lazy::exception_message(e));
    return 1;
  }
}
