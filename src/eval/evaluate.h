// Held-out loss: of a corpus' split, or of one text.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "eval/results.h"
#include "eval/score.h"
#include "model/language_model.h"

namespace lazy::eval {

struct EvalOptions {
  int64_t max_length = 0;       // tokens a window; 0: the model's training length (decision A10)
  bool bos = false;             // BOS before every text (or corpus sequence), as lm-evaluation-harness's add_bos_token
  std::optional<double> limit;  // sequences of a corpus at most; below 1 a share of them
  ScoreOptions score = {};      // but for the title, which is the task's; progress says whether there is one
  bool progress = true;
};

// "heldout": loss (nats per token), bits_per_byte, perplexity (per token) over the sequences of a corpus' validation
// split, each predicted from its own tokens alone, as validation during training does.
TaskResult evaluate_corpus(LanguageModel& model, const std::filesystem::path& corpus, const std::string& split,
                           const EvalOptions& options);

// The same for one text, in rolling windows, with word_perplexity and byte_perplexity besides.
TaskResult evaluate_text(LanguageModel& model, const Tokenizer& tokenizer, const std::string& text,
                         const std::string& source, const EvalOptions& options);

}  // namespace lazy::eval
