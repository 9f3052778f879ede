// Documents rendered to prompts: pairs of context and continuation (or a whole text), with few-shot examples.
#pragma once
#include <string>
#include <vector>

#include "eval/python.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/task.h"

namespace lazy::eval {

struct TextPair {
  std::string context, continuation;
};

struct Question {
  std::vector<TextPair> pairs;       // one a choice; none for a rolling task
  std::string text;                  // of a rolling task
  std::vector<std::string> choices;  // without the delimiter; their lengths normalize acc_norm and acc_bytes
  int64_t label = -1;                // of the right choice, from 0
  std::string target;                // label, continuation or text, as lm-evaluation-harness logs it
  int64_t words = 0, bytes = 0;      // of a rolling task's original text
};

// `examples` precede the document in each context. Error names the row's file, line and field.
Question make_question(const Task& task, const Row& row, const std::string& examples);

// The row as an example: context, delimiter, right answer, and the delimiter between examples.
std::string make_example(const Task& task, const Row& row);

// Few-shot examples drawn as lm-evaluation-harness's default sampler draws them: one random.Random(seed) a task, one
// random.sample a document.
class FewshotSampler {
 public:
  // Error when the pool has too few rows.
  FewshotSampler(const Task& task, std::vector<Row> pool, int64_t count, uint64_t seed);
  // The examples of the next document in file order; "" when count is 0. Where the task excludes the document itself,
  // one more is drawn and the document is left out.
  std::string next(const Row& document);

 private:
  std::vector<const Row*> draw(const Row& document);
  const Task& task_;
  std::vector<Row> pool_;
  size_t count_;
  PythonRandom random_;
};

}  // namespace lazy::eval
