// The definition of a benchmark: the files with its documents, the templates of its prompts, and its metrics.
// Definitions are read from TOML files. src/eval/tasks/*.toml are compiled into the program, and --tasks FILE.toml adds
// a file. The format is described in docs/guides/evaluation.md.
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

// A list of texts: either one template that yields all texts, or one template per text.
struct TextList {
  Template whole;
  std::vector<Template> each;
  bool empty() const { return whole.empty() && each.empty(); }
  std::vector<std::string> texts(const Fields& fields) const;
  Json source() const;
};

struct TaskData {
  std::vector<std::string> files, fewshot_files;  // file names that are searched in the data folder
  // repository and configuration on the Hugging Face Hub, for example "allenai/ai2_arc:ARC-Easy"
  std::vector<std::string> hub;
  std::string split, fewshot_split;
  std::string plain_text;  // how a plain text file is split: "wikitext_pages" or "lines"; empty: plain text is an error
};

struct Task {
  std::string name, description, origin;  // origin: the file that contains the definition
  double version = 0;                     // version of the task in lm-evaluation-harness
  OutputType output_type = OutputType::multiple_choice;
  std::vector<std::string> tags;  // group names for --tasks
  // Multiple choice: acc, acc_norm, acc_bytes. loglikelihood: perplexity, acc. loglikelihood_rolling: word_perplexity,
  // byte_perplexity, bits_per_byte.
  std::vector<std::string> metrics;
  std::string headline;  // the accuracy that is included in the average over tasks; empty: none
  TaskData data;
  std::map<std::string, std::vector<std::string>> columns;  // alternative names of a field, see Fields
  // Fields that are added to a document: a name, and templates of which the first applicable one gives the value.
  std::vector<std::pair<std::string, std::vector<Template>>> computed;
  Template context, label, continuation, text, counted;
  TextList contexts, choices;
  std::string target_delimiter = " ", fewshot_delimiter = "\n\n", prefix;  // prefix: text at the start of every prompt
  bool exclude_document = false;  // whether a document is never used as a few-shot example for itself
};

// Parses a task file. Errors name the file, the line, the expected value and the value found.
Task parse_task(std::string_view toml, const std::string& origin);

const std::vector<Task>& builtin_tasks();
// Returns the tasks selected by --tasks: task names, tags, "all", and paths that end in .toml. Each task is returned
// only once. Errors list the known names.
std::vector<Task> select_tasks(const std::vector<std::string>& names);
Task find_task(const std::string& name);

}  // namespace lazy::eval
