// `lazy help`: prints the embedded guides of docs/ and the usage of commands.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "command.h"
#include "core/error.h"
#include "core/terminal.h"
#include "core/text.h"
#include "guides.h"
#include "markdown.h"

namespace lazy::cli {
namespace {

constexpr int kColumns = 80;      // line width if the output is not a terminal
constexpr int kMaxColumns = 120;  // maximum line width; longer lines are hard to read

const Guide* find_guide(const std::string& topic) {
  const auto found = std::find_if(kGuides.begin(), kGuides.end(), [&](const Guide& g) { return g.topic == topic; });
  return found == kGuides.end() ? nullptr : &*found;
}

// Returns the command that prints the target of a link: "`lazy help data`" for "../guides/data.md#sequences". Returns
// "" for targets that are not embedded guides.
std::string guide_link(const std::string& target) {
  const std::string path = target.substr(0, target.find('#')), file = path.substr(path.rfind('/') + 1);
  if (!file.ends_with(".md") || !find_guide(file.substr(0, file.size() - 3))) {
    return target.starts_with("http") ? target : "";
  }
  return "`lazy help " + file.substr(0, file.size() - 3) + "`";
}

std::string title(const Guide& guide) {
  std::string line(guide.text.substr(0, guide.text.find('\n')));
  line.erase(std::remove(line.begin(), line.end(), '`'), line.end());
  return std::string(strip(line.substr(line.find_first_not_of("# "))));
}

void list() {
  fmt::print("{}\n", bold("Guides: lazy help TOPIC", STDOUT_FILENO));
  for (const Guide& guide : kGuides) fmt::print("  {:15} {}\n", guide.topic, title(guide));
  fmt::print("\nCommands: `lazy --help` lists them; `lazy help COMMAND` prints the usage of one.\n");
}

void show(CLI::App& program, const std::string& topic) {
  const auto commands = describe(program).subcommands;
  const bool is_command =
      std::any_of(commands.begin(), commands.end(), [&](const CommandDescription& c) { return c.name == topic; });
  if (const Guide* guide = find_guide(topic)) {
    MarkdownStyle style;
    style.width = std::min(terminal_width(STDOUT_FILENO, kColumns), kMaxColumns);
    style.heading = [](const std::string& text) { return bold(text, STDOUT_FILENO); };
    style.replace = guide_link;
    fmt::print("{}", render_markdown(guide->text, style));
    if (is_command) fmt::print("\n{}\n", bold("Options: lazy " + topic + " --help", STDOUT_FILENO));
    return;
  }
  if (is_command) {
    fmt::print("{}", program.get_subcommand(topic)->help(program.get_name()));
    return;
  }
  std::vector<std::string> known;
  for (const Guide& guide : kGuides) known.push_back(guide.topic);
  for (const CommandDescription& command : commands) known.push_back(command.name);
  const std::string near = nearest(topic, known);
  fail("help",
       "expected a topic or a command, found \"{}\"{}; `lazy help` lists the topics and `lazy --help` the commands",
       topic, near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

}  // namespace
}  // namespace lazy::cli

LAZY_COMMAND(help, "Print a guide, or the usage of a command", [](CLI::App& command) {
  auto topic = std::make_shared<std::string>();
  std::vector<std::string> topics;
  for (const auto& guide : lazy::cli::kGuides) topics.push_back(guide.topic);
  for (const auto& [name, unused] : lazy::cli::subcommands()) {
    if (std::find(topics.begin(), topics.end(), name) == topics.end()) topics.push_back(name);
  }
  command.add_option("topic", *topic, "Guide or command (default: list the guides)")
      ->check(lazy::cli::suggestions(topics));
  command.footer(
      "Examples:\n"
      "  lazy help\n"
      "  lazy help configuration | less");
  command.callback(
      [&command, topic] { topic->empty() ? lazy::cli::list() : lazy::cli::show(lazy::cli::root(command), *topic); });
});
