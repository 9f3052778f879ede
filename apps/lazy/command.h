// A subcommand is one file that ends with
//   LAZY_COMMAND(train, "Train a model from a configuration", [](CLI::App& command) { ... command.callback(...); });
#pragma once
#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <string>

namespace lazy::cli {

struct Command {
  std::string help;
  std::function<void(CLI::App&)> set_up;
};

std::map<std::string, Command>& commands();

struct Registration {
  Registration(const char* name, const char* help, std::function<void(CLI::App&)> set_up) {
    commands()[name] = {help, std::move(set_up)};
  }
};

}  // namespace lazy::cli

#define LAZY_COMMAND(name, help, ...) \
  static const ::lazy::cli::Registration registration_##name(#name, help, __VA_ARGS__)
