// The documents of a benchmark: finds its files and reads their rows (JSON lines, Parquet from the Hugging Face Hub,
// plain text).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tasks/task.h"

namespace lazy::eval {

struct TaskDocument {
  Json document;      // the row as a JSON object, followed by the computed fields of the task
  std::string where;  // file and line for error messages, such as "data/piqa.jsonl:17"
};

// Returns all rows of the evaluated split, or with `fewshot` of the split from which examples are drawn. Errors name
// the file, the line, the field, the expected value and the value found.
std::vector<TaskDocument> read_rows(const Task& task, const std::filesystem::path& data, bool fewshot = false);

// Returns the files of the split in order. First the file names of the task are tried in DIR and DIR/eval, also with
// .gz or .zst appended. Then each Hub repository "owner/repo:config" is searched for .parquet files (or .jsonl,
// .jsonl.gz, .jsonl.zst) in DIR/owner/repo, DIR/owner--repo or DIR/repo. A file is used if it is below a folder named
// `config`, and either its name starts with the split ("test-00000-of-00001.parquet") or its folder has the name of the
// split. Errors list the names.
std::vector<std::filesystem::path> find_task_files(const Task& task, const std::filesystem::path& data, bool fewshot);
bool has_task_files(const Task& task, const std::filesystem::path& data);

// Returns the number of documents after applying `limit`: min(available, limit), or the rounded-up fraction if `limit`
// is below 1.
int64_t apply_limit(int64_t available, const std::optional<double>& limit);

// Splits the raw WikiText file into pages by the rule of EleutherAI/wikitext_document_level: a page starts at a line "
// = Title = " with one equals sign on each side. Pages that contain only white space are dropped.
std::vector<std::string> wikitext_pages(std::string_view raw);

}  // namespace lazy::eval
