// Examples before the question, drawn as lm-evaluation-harness's default sampler draws them: one random.Random(seed) a
// task, one random.sample a document.
#pragma once
#include <string>
#include <vector>

#include "eval/data/rows.h"
#include "eval/python_random.h"
#include "eval/tasks/task.h"

namespace lazy::eval {

class FewshotSampler {
 public:
  // Error when the pool holds too few rows.
  FewshotSampler(const Task& task, std::vector<Row> pool, int64_t count, uint64_t seed);
  // The examples of the next document, in the order of the file; "" when count is 0. The document itself is left out
  // where the task says so (one more is drawn there).
  std::string next(const Row& document);

 private:
  std::vector<const Row*> draw(const Row& document);
  const Task& task_;
  std::vector<Row> pool_;
  size_t count_;
  PythonRandom random_;
};

}  // namespace lazy::eval
