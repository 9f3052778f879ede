// Documents to requests on a thread of its own: the next are read, rendered and tokenized while the model computes.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/tokenizer.h"
#include "eval/request.h"
#include "eval/tasks/question.h"
#include "eval/windows.h"

namespace lazy::eval {

// A choice has more tokens than the model can read.
class LongerThanModel : public Error {
 public:
  using Error::Error;
};

struct PrepareOptions {
  int64_t max_length = 0;
  bool bos = false;
  int64_t num_fewshot = 0;
  uint64_t fewshot_seed = 1234;      // lm-evaluation-harness's
  std::optional<double> limit = {};  // documents a task; below 1 a share of them
};

// How many of the documents `limit` leaves: of a share the ceiling, as there.
int64_t limited(int64_t available, const std::optional<double>& limit);

// Some documents of one task, in order, with what is to be scored: requests, or the windows of a rolling task.
struct Chunk {
  size_t task = 0;
  bool last = false;                  // of its task
  int64_t original = 0, planned = 0;  // documents in the files, documents to evaluate
  int64_t first = 0;                  // document number of questions[0]
  std::vector<Row> rows;
  std::vector<Question> questions;
  std::vector<Request> requests;
  std::vector<Window> windows;
  std::vector<size_t> ends;  // behind each question's requests or windows
  int64_t tokens = 0;        // of a rolling task's texts
};

class Preparation {
 public:
  // All tasks one after the other; at most a few chunks of some thousand requests are ready at a time.
  Preparation(std::vector<Task> tasks, std::filesystem::path data, const Tokenizer& tokenizer, PrepareOptions options);
  ~Preparation();  // ends the thread, whatever it was doing
  // False at the end. What the thread threw is thrown here, in its place in the order.
  bool next(Chunk& chunk);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::eval
