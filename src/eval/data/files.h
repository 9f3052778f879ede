// Where a task's documents lie: plain names below the data folder, or a repository of the Hub as it was downloaded.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "eval/tasks/task.h"

namespace lazy::eval {

// The files of one split, in order; `fewshot`: of the split that examples are taken from.
//
// First the task's own names, in DIR and DIR/eval, also with .gz or .zst behind them; then, for "owner/repo:config",
// all .parquet files (or .jsonl, .jsonl.gz, .jsonl.zst) in DIR/owner/repo, DIR/owner--repo or DIR/repo that lie below a
// folder called config and whose name begins with the split ("test-00000-of-00001.parquet") or whose folder is called
// that. Error names what was looked for.
std::vector<std::filesystem::path> find_task_files(const Task& task, const std::filesystem::path& data, bool fewshot);

// Whether any are there.
bool has_task_files(const Task& task, const std::filesystem::path& data);

}  // namespace lazy::eval
