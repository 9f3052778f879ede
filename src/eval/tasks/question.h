// A document turned into what the model is asked: one or more pairs of context and continuation, or a whole text.
#pragma once
#include <string>
#include <vector>

#include "eval/data/rows.h"
#include "eval/tasks/task.h"

namespace lazy::eval {

struct TextPair {
  std::string context, continuation;
};

struct Question {
  std::vector<TextPair> pairs;       // one a choice; of a rolling task none
  std::string text;                  // of a rolling task
  std::vector<std::string> choices;  // without the delimiter: their lengths normalize acc_norm and acc_bytes
  int64_t label = -1;                // of the right choice, from 0
  std::string target;                // the label, the continuation or the text, as lm-evaluation-harness records it
  int64_t words = 0, bytes = 0;      // of a rolling task's original text
};

// `examples` stand before the document in each context. Error names the row's file, line and field.
Question make_question(const Task& task, const Row& row, const std::string& examples);

// The row as an example: context, delimiter, right answer, and the delimiter between examples.
std::string make_example(const Task& task, const Row& row);

}  // namespace lazy::eval
