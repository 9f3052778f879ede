// A recipe: a table or figure of the paper, or a further check, as a plan of steps and a judgement of their results.
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
  std::string model;  // of the plan; empty: cited, not run here
};

struct PublishedTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<PublishedRow> rows;
};

// A drawing: within the HTML page, and a file beside a Markdown page.
struct Figure {
  std::string file, title;  // "rivals-loss.svg"
  std::string drawing;      // SVG, in the colours of the page's style sheet
  double width = 0, height = 0;
  std::string label;  // what is drawn, for screen readers
};

// A table of the report, ready to print, and the figures below it.
struct ResultTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::string note = {};  // below it
  std::vector<Figure> figures = {};
};

// What the measured seeds say to whoever has to choose a model.
struct Choice {
  std::string title;
  std::vector<std::string> paragraphs;
  ResultTable table;  // without rows: nothing to compare yet
};

struct Recipe {
  std::string name;    // "table1"
  std::string title;   // what it is about, in a few words
  std::string source;  // "paper, Table 1"
  std::function<std::vector<Step>(const Conditions&)> plan;
  std::function<std::vector<Finding>(const Conditions&, const Results&)> judge;
  PublishedTable published;
  std::vector<std::string> notes;                            // caveats for the reader
  std::function<std::string(const Results&)> pictures = {};  // sections of the HTML page, if there are any
  std::function<std::vector<ResultTable>(const Conditions&, const Results&)> tables = {};  // if there are any
  std::function<std::optional<Choice>(const Conditions&, const Results&)> choice = {};
  std::map<std::string, std::string> means = {};  // by scale: a line in the place of the scale's own, if not empty

  const std::string& scale_means(const Scale& scale) const {
    const auto own = means.find(scale.name);
    return own == means.end() || own->second.empty() ? scale.means : own->second;
  }
};

// The embedded ones of configs/repro/.
const std::vector<Recipe>& recipes();
// A name, or the path of a file ending in .toml. Error suggests the nearest name.
const Recipe& find_recipe(const std::string& name);

}  // namespace lazy::repro
