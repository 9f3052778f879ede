// A recipe reproduces a table or figure of the paper, or runs an additional check. It consists of a plan of steps and
// of the claims that are tested on the results.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "repro/judge.h"
#include "repro/plan.h"
#include "repro/results.h"

namespace lazy::repro {

// A published row of numbers.
struct PublishedRow {
  std::string name;
  std::vector<double> values;
  std::string model;  // the corresponding model of the plan; if empty, the row is only cited
};

struct PublishedTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<PublishedRow> rows;
};

// A drawing. It is embedded in the HTML page and stored as a separate file next to a Markdown page.
struct Figure {
  std::string file, title;  // file name, for example "rivals-loss.svg"
  std::string drawing;      // SVG that uses the colors of the page's style sheet
  double width = 0, height = 0;
  std::string label;  // description of the drawing for screen readers
};

// A table of the report as printable strings, and the figures that are printed after it.
struct ResultTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::string note = {};  // printed after the table
  std::vector<Figure> figures = {};
};

// A summary of the measured seeds, which helps readers to choose a model.
struct Choice {
  std::string title;
  std::vector<std::string> paragraphs;
  ResultTable table;  // without rows, nothing can be compared yet
};

struct Recipe {
  std::string name;    // for example "table1"
  std::string title;   // the subject in a few words
  std::string source;  // for example "paper, Table 1"
  std::function<std::vector<Step>(const Conditions&)> plan;
  std::function<std::vector<Finding>(const Conditions&, const Results&)> judge;
  PublishedTable published;
  std::vector<std::string> notes;                            // caveats for the reader
  std::function<std::string(const Results&)> pictures = {};  // further sections of the HTML page, if any
  std::function<std::vector<ResultTable>(const Conditions&, const Results&)> tables = {};  // result tables, if any
  std::function<std::optional<Choice>(const Conditions&, const Results&)> choice = {};
  std::map<std::string, std::string> means = {};  // by scale name: replaces the scale's description if not empty

  const std::string& scale_means(const Scale& scale) const {
    const auto own = means.find(scale.name);
    return own == means.end() || own->second.empty() ? scale.means : own->second;
  }
};

// The recipes of configs/repro/, which are embedded in the program.
const std::vector<Recipe>& recipes();
// Finds a recipe by name, or reads it if `name` is the path of a file ending in .toml. Throws an Error that suggests
// the nearest name.
const Recipe& find_recipe(const std::string& name);

}  // namespace lazy::repro
