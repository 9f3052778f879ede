// Evaluates a model: held-out loss of a corpus or a text, and benchmarks.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/prefetch.h"
#include "eval/results.h"
#include "eval/score.h"

namespace lazy {
class LanguageModel;
}

namespace lazy::eval {

struct HeldoutOptions {
  int64_t max_length = 0;  // tokens per window; 0: the training length of the model
  bool bos = false;        // BOS before every text or sequence, like add_bos_token in lm-evaluation-harness
  // Maximum number of sequences of a corpus or of windows of a text. Values below 1 are a fraction of all sequences or
  // windows.
  std::optional<double> limit;
  ScoreOptions score = {};  // options of scoring, except the title, which the evaluation sets
  bool progress = true;
  bool bos_every_window = false;  // additionally start every window of a long text with BOS
};

// Evaluates the task "heldout": loss (nats per token), bits_per_byte and perplexity (per token) over the sequences of a
// corpus split. Each sequence is scored without context from other sequences, as during validation in training.
TaskResult evaluate_corpus(LanguageModel& model, const std::filesystem::path& corpus, const std::string& split,
                           const HeldoutOptions& options);

// Evaluates the task "heldout" for one text in rolling windows. The result also contains word_perplexity and
// byte_perplexity.
TaskResult evaluate_text(LanguageModel& model, const Tokenizer& tokenizer, const std::string& text,
                         const std::string& source, const HeldoutOptions& options);

struct TaskOptions {
  PromptOptions prompt;     // if max_length is 0, the training length of the model is used
  ScoreOptions score = {};  // options of scoring; the title is replaced by the name of the task
  bool log_samples = false;
  bool progress = true;
  // Called for each finished task, in the order of `tasks`, before the following tasks have been scored. If scoring
  // stops or fails, the callback receives the remaining finished tasks before the exception is thrown.
  std::function<void(const TaskResult&)> on_result = {};
};

// Evaluates benchmarks in the order of `tasks`. The aggregation and the standard errors of a task are computed while
// the next task is scored.
std::vector<TaskResult> evaluate_tasks(LanguageModel& model, const Tokenizer& tokenizer, const std::vector<Task>& tasks,
                                       const std::filesystem::path& data, TaskOptions options);

}  // namespace lazy::eval
