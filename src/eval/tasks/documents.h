// The documents of a benchmark: where its files are, and the rows in them (JSON lines, the Hub's Parquet, plain text).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tasks/task.h"

namespace lazy::eval {

struct Row {
  Json document;      // an object; the task's computed fields come last
  std::string where;  // "data/piqa.jsonl:17", for error messages
};

// All rows of the evaluated split, or with `fewshot` of the split that examples are drawn from. Error names the file,
// the line, the field, what was expected and what was found.
std::vector<Row> read_rows(const Task& task, const std::filesystem::path& data, bool fewshot = false);

// The files of that split, in order. First the task's own file names are tried in DIR and DIR/eval, also with .gz or
// .zst appended. Then, for each Hub repository "owner/repo:config", all .parquet files (or .jsonl, .jsonl.gz,
// .jsonl.zst) in DIR/owner/repo, DIR/owner--repo or DIR/repo that are below a folder called config and whose name
// begins with the split ("test-00000-of-00001.parquet") or whose folder has the split's name. Error lists the names.
std::vector<std::filesystem::path> find_task_files(const Task& task, const std::filesystem::path& data, bool fewshot);
bool has_task_files(const Task& task, const std::filesystem::path& data);

// The number of documents that `limit` leaves: min(available, limit), or the ceiling of a share below 1.
int64_t apply_limit(int64_t available, const std::optional<double>& limit);

// The pages of WikiText's raw file, by the rule of EleutherAI/wikitext_document_level: a page starts at a line
// " = Title = " with one equals sign on each side. Pages of white space alone are dropped.
std::vector<std::string> wikitext_pages(std::string_view raw);

}  // namespace lazy::eval
