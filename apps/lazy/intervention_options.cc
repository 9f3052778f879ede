#include "intervention_options.h"

#include <fmt/format.h>

#include <map>

namespace lazy::cli {

void add_interventions(CLI::App& command) {
  const auto change = [&](const char* option, const std::string& what) {
    command.add_option(option, what)
        ->type_name("TEXT")
        ->expected(1)
        ->take_all()
        ->allow_extra_args(false)
        ->group("Interventions");
  };
  change("--set-zero", "NAME[INDEX]: zeros in a weight or an activation");
  change("--replace", "NAME[INDEX]=VALUE");
  change("--add", "NAME[INDEX]=VALUE");
  change("--swap-positions", "NAME=I,J: positions of an activation, rows of a weight");
}

std::pair<sinks::Interventions, Changes> given_interventions(const CLI::App& command) {
  using sinks::Interventions;
  const std::map<std::string, Interventions& (Interventions::*)(const std::string&)> kinds{
      {"--set-zero", &Interventions::set_zero},
      {"--replace", &Interventions::replace},
      {"--add", &Interventions::add},
      {"--swap-positions", &Interventions::swap_positions}};
  std::pair<Interventions, Changes> out;
  std::map<std::string, size_t> seen;
  for (const CLI::Option* option : command.parse_order()) {
    const auto kind = kinds.find(option->get_name());
    if (kind == kinds.end()) continue;
    const std::string& text = option->results().at(seen[kind->first]++);
    (out.first.*kind->second)(text);
    out.second.emplace_back(kind->first, text);
  }
  return out;
}

std::string command_line(const Changes& changes) {
  std::string line;
  for (const auto& [option, text] : changes) line += fmt::format(" {} '{}'", option, text);
  return line;
}

}  // namespace lazy::cli
