// `lazy report RUN_DIR...`: writes one HTML page about runs or results, with the Python package lazy_lab.run_report.
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "report_page.h"

namespace lazy::cli {

LAZY_COMMAND(report, "Write an HTML page about one or several runs", [](CLI::App& command) {
  auto inputs = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>("report.html");
  command
      .add_option("inputs", *inputs,
                  "Folders of runs (docs/reference/run-directory.md), or a JSON file of lazy sinks or lazy eval")
      ->required();
  command.add_option("--output", *output, "Page to write")->capture_default_str();
  command.footer(R"(
Examples:
  lazy report runs/lazy runs/softmax
  lazy report runs/lazy --output lazy.html
  lazy report sinks.json
  lazy report lengths.json      # of `lazy eval --lengths ... --output lengths.json`

The page is self-contained: styles and pictures are inline. Missing parts of a run (eval.json of `lazy eval --output`,
sinks.json of `lazy sinks --json`, samples.json of `lazy generate --json`) are left out and listed at the end. The
report needs Python 3.11 or later with jinja2 and matplotlib (see `lazy doctor`).)");
  command.callback([inputs, output, &command] { start_report(*inputs, *output, command_line(command)); });
});

}  // namespace lazy::cli
