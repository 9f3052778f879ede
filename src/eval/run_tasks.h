// Benchmarks, from their files to their numbers: requests, scores, metrics, records.
#pragma once
#include <filesystem>
#include <vector>

#include "data/tokenizer.h"
#include "eval/prepare.h"
#include "eval/results.h"
#include "eval/score.h"
#include "model/language_model.h"

namespace lazy::eval {

struct RunOptions {
  PrepareOptions prepare;   // max_length 0: the model's training length (decision A10)
  ScoreOptions score = {};  // but for the title, which is the task's
  bool log_samples = false;
  bool progress = true;
};

// In the order of `tasks`. What a task's standard error costs is spent while the next one is computed.
std::vector<TaskResult> run_tasks(LanguageModel& model, const Tokenizer& tokenizer, const std::vector<Task>& tasks,
                                  const std::filesystem::path& data, RunOptions options);

}  // namespace lazy::eval
