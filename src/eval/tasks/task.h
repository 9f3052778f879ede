// A benchmark is data: a TOML file that says which files hold the documents, how a document becomes a question, and
// which numbers come out. src/eval/tasks/*.toml are built into the program; --tasks FILE.toml adds one.
// docs/evaluation.md describes the format.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eval/tasks/template.h"

namespace lazy::eval {

enum class OutputType { multiple_choice, loglikelihood, loglikelihood_rolling };
const char* name(OutputType type);

// A list of texts: one template for all of them, or one for each.
struct TextList {
  Template whole;
  std::vector<Template> each;
  bool empty() const { return whole.empty() && each.empty(); }
  std::vector<std::string> texts(const Fields& fields) const;
  Json source() const;
};

struct TaskData {
  std::vector<std::string> files, fewshot_files;  // looked for below the data folder
  std::vector<std::string> hub;                   // "allenai/ai2_arc:ARC-Easy", repository and configuration on the Hub
  std::string split, fewshot_split;
  std::string plain_text;  // how a file that is not JSON lines is cut: "wikitext_pages", "lines"; empty: not read
};

struct Task {
  std::string name, description, origin;  // origin: the file it was read from
  double version = 0;                     // of the task in lm-evaluation-harness
  OutputType output_type = OutputType::multiple_choice;
  std::vector<std::string> tags;  // groups that --tasks may name
  std::vector<std::string>
      metrics;           // acc, acc_norm, acc_bytes; perplexity, acc; word_perplexity, byte_perplexity, bits_per_byte
  std::string headline;  // the accuracy that counts in the average over tasks; empty: none
  TaskData data;
  std::map<std::string, std::vector<std::string>> columns;  // see Fields
  std::vector<std::pair<std::string, std::vector<Template>>>
      computed;  // fields added, by the first template that applies
  Template context, label, continuation, text, counted;
  TextList contexts, choices;
  std::string target_delimiter = " ", fewshot_delimiter = "\n\n", prefix;  // prefix: before everything else
  bool exclude_document = false;                                           // the document itself is no example for it
};

// Error names the file, the line, what was expected and what was found.
Task parse_task(std::string_view toml, const std::string& origin);

const std::vector<Task>& builtin_tasks();
// What --tasks names: tasks, tags, "all", and files that end in .toml; each task once. Error lists what there is.
std::vector<Task> select_tasks(const std::vector<std::string>& names);
Task find_task(const std::string& name);

}  // namespace lazy::eval
