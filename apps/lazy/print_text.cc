#include "print_text.h"

#include <chrono>
#include <cstdio>

#include "core/error.h"
#include "data/tokenizer.h"

namespace lazy::cli {

void print(const char* operation, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) fail_run(operation, "cannot write to standard output");
}

PrintedText print_text(const char* operation, GenerationService& engine, GenerationService::Id id, TokenQueue& tokens,
                       const Tokenizer& tokenizer, OutputText output, const std::function<bool()>& stop) {
  PrintedText out;
  const auto start = std::chrono::steady_clock::now();
  const auto write = [&](const std::string& piece) {
    out.text += piece;
    print(operation, piece);
  };
  while (!tokens.ended()) {
    if (stop()) engine.cancel(id);
    const auto item = tokens.next(std::chrono::milliseconds(100));
    if (!item || item->stop_token) continue;
    ++out.tokens;
    out.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (item->token.id < tokenizer.vocab_size()) write(output.push(item->token.id));
  }
  out.reason = tokens.reason();
  if (out.reason == FinishReason::failed) fail_run(operation, "{}", tokens.message());
  write(output.finish());
  return out;
}

}  // namespace lazy::cli
