// Prefetching of benchmark requests: a thread reads, renders and tokenizes documents while the model computes.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/tokenizer.h"
#include "eval/requests.h"
#include "eval/tasks/prompt.h"

namespace lazy::eval {

// A continuation has more tokens than the model's maximum length.
class SequenceTooLong : public Error {
 public:
  using Error::Error;
};

struct PromptOptions {
  int64_t max_length = 0;
  bool bos = false;
  int64_t num_fewshot = 0;
  uint64_t fewshot_seed = 1234;      // lm-evaluation-harness's default
  std::optional<double> limit = {};  // documents a task at most; below 1 a share of them
  bool bos_every_window = false;     // BOS also first in every window of a rolling task; other tasks: as `bos`
};

// Consecutive documents of one task with what is to be scored: requests, or the windows of a rolling task.
struct RequestChunk {
  size_t task = 0;
  bool last = false;                  // of its task
  int64_t original = 0, planned = 0;  // documents in the files, documents to evaluate
  int64_t first = 0;                  // document number of questions[0]
  std::vector<Row> rows;
  std::vector<Question> questions;
  std::vector<Request> requests;
  std::vector<Window> windows;
  std::vector<size_t> ends;  // end of each question's range in requests or windows
  int64_t tokens = 0;        // of a rolling task's texts
};

// The chunks of all tasks, one task after the other; the queue holds a few chunks of some thousand requests each.
class RequestPrefetcher {
 public:
  RequestPrefetcher(std::vector<Task> tasks, std::filesystem::path data, const Tokenizer& tokenizer,
                    PromptOptions options);
  ~RequestPrefetcher();  // stops the thread
  // False after the last chunk. Rethrows an exception of the thread at its place in the order.
  bool next(RequestChunk& chunk);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::eval
