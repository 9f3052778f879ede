// The documents of a benchmark as they stand in its files: JSON lines, the Hub's Parquet, or plain text cut into pages.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/tasks/task.h"

namespace lazy::eval {

struct Row {
  Json document;      // an object; the task's computed fields stand last
  std::string where;  // "data/piqa.jsonl:17", for messages
};

// All rows of the evaluated split, or of the one that examples come from. Error names the file, the line, the field,
// what was expected and what was found.
std::vector<Row> read_rows(const Task& task, const std::filesystem::path& data, bool fewshot = false);

}  // namespace lazy::eval
