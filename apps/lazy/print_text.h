// Streams generated text to standard output, for `lazy generate` and `lazy chat`.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generate/output_text.h"
#include "serve/token_queue.h"

namespace lazy::cli {

// Writes to standard output and flushes it. RunError "OPERATION: ..." if that fails.
void print(const char* operation, const std::string& text);

struct PrintedText {
  std::string text;
  int64_t tokens = 0;  // without the stop token
  FinishReason reason = FinishReason::stop;
  std::vector<double> seconds;  // of each token, from the call until it arrived
};

// Prints the text of the request `id` as its tokens arrive in `tokens`, and returns it when the request has ended.
// Cancels the request when `stop` returns true, which is asked at least every 100 ms. RunError if generation fails.
PrintedText print_text(const char* operation, GenerationService& engine, GenerationService::Id id, TokenQueue& tokens,
                       const Tokenizer& tokenizer, OutputText output, const std::function<bool()>& stop);

}  // namespace lazy::cli
