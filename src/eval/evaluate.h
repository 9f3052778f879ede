// Evaluates a model: held-out loss of a corpus or a text, and benchmarks from their files to their metrics.
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
  int64_t max_length = 0;       // tokens a window; 0: the model's training length
  bool bos = false;             // BOS before every text or sequence, as lm-evaluation-harness's add_bos_token
  std::optional<double> limit;  // sequences of a corpus at most; below 1 a share of them
  ScoreOptions score = {};      // its title is replaced
  bool progress = true;
  bool bos_every_window = false;  // also before every window of a text that takes several
};

// Task "heldout": loss (nats per token), bits_per_byte and perplexity (per token) over the sequences of a corpus'
// split. Each sequence is scored without context from others, as validation during training does.
TaskResult evaluate_corpus(LanguageModel& model, const std::filesystem::path& corpus, const std::string& split,
                           const HeldoutOptions& options);

// The same for one text in rolling windows, with word_perplexity and byte_perplexity in addition.
TaskResult evaluate_text(LanguageModel& model, const Tokenizer& tokenizer, const std::string& text,
                         const std::string& source, const HeldoutOptions& options);

struct TaskOptions {
  PromptOptions prompt;     // max_length 0: the model's training length
  ScoreOptions score = {};  // its title is replaced by the task's name
  bool log_samples = false;
  bool progress = true;
  // Called with each finished task, in the order of `tasks`, before the next tasks have been scored. If scoring is
  // stopped or fails, it gets the remaining finished tasks before the exception is thrown.
  std::function<void(const TaskResult&)> on_result = {};
};

// Benchmarks, in the order of `tasks`. Aggregation and standard errors of a task overlap with the scoring of the next.
std::vector<TaskResult> evaluate_tasks(LanguageModel& model, const Tokenizer& tokenizer, const std::vector<Task>& tasks,
                                       const std::filesystem::path& data, TaskOptions options);

}  // namespace lazy::eval
