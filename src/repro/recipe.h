// A recipe: a table or figure of the paper, or a further check, as a plan of steps and a judgement of their results.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "repro/plan.h"
#include "repro/results.h"
#include "repro/verdict.h"

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

struct Recipe {
  std::string name;    // "table1"
  std::string title;   // what it is about, in a few words
  std::string source;  // "paper, Table 1"
  std::function<std::vector<Step>(const Conditions&)> plan;
  std::function<std::vector<Finding>(const Conditions&, const Results&)> judge;
  PublishedTable published;
  std::vector<std::string> notes;                            // caveats for the reader
  std::function<std::string(const Results&)> pictures = {};  // sections of the HTML page, if there are any
};

const std::vector<Recipe>& recipes();
// Error suggests the nearest.
const Recipe& find_recipe(const std::string& name);

// Defined in recipes/.
Recipe table1();
Recipe table2();
Recipe table3();
Recipe figure4();
Recipe figure5();
Recipe figure6();
Recipe figure8();
Recipe figure9();
Recipe figure10();
Recipe ablation();
Recipe parity();
Recipe cross_domain();
Recipe rope_base();
Recipe offset_start();
Recipe latency();
Recipe gpt2_gamma();
Recipe gpt2_delta();
Recipe gpt2_positions();
Recipe gpt2_interventions();
Recipe toy_unigram();
Recipe toy_bigram();
Recipe figure2();
Recipe figure2a();
Recipe figure3();
Recipe figure7();
Recipe streaming_check();
std::vector<Recipe> tables4to7();

}  // namespace lazy::repro
