// Prefetches benchmark requests: a thread reads, renders and tokenizes documents while the model computes.
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

struct PromptOptions {
  int64_t max_length = 0;
  bool bos = false;
  int64_t num_fewshot = 0;
  uint64_t fewshot_seed = 1234;      // seed of the examples; this is the default of lm-evaluation-harness
  std::optional<double> limit = {};  // maximum number of documents per task; values below 1 are a fraction
  bool bos_every_window = false;     // Start every window of rolling tasks with BOS. Other tasks use `bos`.
};

// Consecutive documents of one task and the data to score for them: requests, or the windows of a rolling task.
struct RequestChunk {
  size_t task = 0;
  bool last = false;                  // whether this is the last chunk of its task
  int64_t original = 0, planned = 0;  // number of documents in the files, and number that is evaluated
  int64_t first = 0;                  // number of the document of questions[0] within the task
  std::vector<TaskDocument> rows;
  std::vector<Question> questions;
  std::vector<Request> requests;
  std::vector<Window> windows;
  std::vector<size_t> ends;  // end of each question's range in requests or windows
  int64_t tokens = 0;        // total number of tokens in the texts; only for a rolling task
};

// Provides the chunks of all tasks, one task after another. The queue contains a few chunks of several thousand
// requests each.
class RequestPrefetcher {
 public:
  RequestPrefetcher(std::vector<Task> tasks, std::filesystem::path data, const Tokenizer& tokenizer,
                    PromptOptions options);
  ~RequestPrefetcher();  // stops the thread and waits for it
  // Returns false after the last chunk. If the thread has thrown an exception, it is rethrown after the preceding
  // chunks have been returned.
  bool next(RequestChunk& chunk);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::eval
