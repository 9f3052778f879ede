// Streams generated text to standard output, for `lazy generate` and `lazy chat`.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generate/output_text.h"
#include "serve/token_queue.h"

namespace lazy::cli {

// Writes to standard output and flushes it. Throws RunError "OPERATION: ..." if writing fails.
void print(const char* operation, const std::string& text);

struct PrintedText {
  std::string text;
  int64_t tokens = 0;  // number of tokens without the stop token
  FinishReason reason = FinishReason::stop;
  std::vector<double> seconds;  // arrival time of each token, measured from the call
};

// Prints the text of request `id` while its tokens arrive in `tokens`, and returns the text when the request has ended.
// `stop` is called at least every 100 ms; if it returns true, the request is cancelled. Throws RunError if generation
// fails.
PrintedText print_text(const char* operation, GenerationService& engine, GenerationService::Id id, TokenQueue& tokens,
                       const Tokenizer& tokenizer, OutputText output, const std::function<bool()>& stop);

}  // namespace lazy::cli
