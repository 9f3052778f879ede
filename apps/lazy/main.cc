// `lazy`: one binary to train, evaluate, inspect and run models. Each subcommand is a file in this folder.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "build_info.h"
#include "command.h"

#include "core/error.h"
#include "core/log.h"

int main(int argc, char** argv) {
  CLI::App app{"Lazy Attention: train, evaluate and study attention that allocates its weight well", "lazy"};
  app.require_subcommand(1);
  app.fallthrough();
  int threads = 0;
  bool verbose = false;
  app.add_option("--threads", threads, "CPU threads (default: all cores)")->check(CLI::PositiveNumber);
  app.add_flag("-v,--verbose", verbose, "Print debugging messages");
  app.set_version_flag("--version", lazy::cli::version_line, "Print the version and exit");
  app.parse_complete_callback([&] {
    if (threads > 0) at::set_num_threads(threads);
    lazy::log::set_level(verbose ? 0 : 1);
  });
  for (const auto& [name, command] : lazy::cli::subcommands()) {
    command.set_up(lazy::cli::Command(app.add_subcommand(name, command.help)));
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    fmt::print(stderr, "lazy: {}\nRun `lazy {}--help` for the usage.\n", e.what(),
               app.get_subcommands().empty() ? "" : app.get_subcommands().front()->get_name() + " ");
    return 2;
  } catch (const lazy::Error& e) {
    fmt::print(stderr, "lazy: {}\n", e.what());
    return e.exit_code();
  } catch (const c10::Error& e) {
    fmt::print(stderr, "lazy: internal error: {}\n", e.what_without_backtrace());
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "lazy: internal error: {}\n", e.what());
    return 1;
  }
}
