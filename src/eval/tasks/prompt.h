// Renders documents as prompts: pairs of context and continuation (or a whole text), with few-shot examples.
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
  std::vector<TextPair> pairs;  // one pair per choice; empty for a rolling task
  std::string text;             // the text to score of a rolling task
  // choices without the delimiter before them; acc_norm and acc_bytes divide by the length of the choice
  std::vector<std::string> choices;
  int64_t label = -1;            // 0-based index of the correct choice
  std::string target;            // label, continuation or text, as logged by lm-evaluation-harness
  int64_t words = 0, bytes = 0;  // size of the original text of a rolling task
};

// Renders a row as a question. `examples` are inserted before the document in each context. Errors name the file, line
// and field of the row.
Question make_question(const Task& task, const TaskDocument& row, const std::string& examples);

// Formats the row as an example: context, delimiter, correct answer, and the delimiter between examples.
std::string make_example(const Task& task, const TaskDocument& row);

// Draws few-shot examples like the default sampler of lm-evaluation-harness: one random.Random(seed) per task and one
// random.sample per document.
class FewshotSampler {
 public:
  // Throws Error if the pool does not contain enough rows.
  FewshotSampler(const Task& task, std::vector<TaskDocument> pool, int64_t count, uint64_t seed);
  // Returns the examples of the next document in file order, or "" if count is 0. If the task excludes the document
  // itself, one more example is drawn and the document is removed from the examples.
  std::string next(const TaskDocument& document);

 private:
  std::vector<const TaskDocument*> draw(const TaskDocument& document);
  const Task& task_;
  std::vector<TaskDocument> pool_;
  size_t count_;
  PythonRandom random_;
};

}  // namespace lazy::eval
