// Log-probabilities in the format of OpenAI's completions: parallel arrays with one entry per token.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "generate/text_stream.h"
#include "serve/generation.h"

namespace lazy::serve {

// Returns the bytes of a token, or "" for ids that exist only in the model (padding of its vocabulary).
std::string token_bytes(const Tokenizer& tokenizer, int64_t id);
// Returns the displayed text of a token. Bytes that are not complete UTF-8 are written as "bytes:\xe2\x80", as OpenAI
// does.
std::string token_text(const Tokenizer& tokenizer, int64_t id);

// Converts a log-probability to JSON: null for NaN (no log-probability), -9999 for minus infinity. Equal floats are
// always written with the same digits.
nlohmann::ordered_json logprob_json(float logprob);

// Returns {text: log-probability} for the `top` most likely tokens and for `token`, which comes first if it is not
// among them. If two tokens have the same text, the text is the key of `token` or, if `token` is neither of them, of
// the likelier one. The other token's key is its id, such as "token_id:17".
nlohmann::ordered_json top_logprobs(const Tokenizer& tokenizer, const ScoredToken& token, int top);

// The arrays tokens, token_logprobs, top_logprobs and text_offset of one choice. Offsets are counted in characters
// (Unicode code points) of the choice's text.
class LogprobArrays {
 public:
  // skip: number of leading characters that the concatenated token texts have and the choice's text does not have (the
  // space that SentencePiece inserts before the first word). before: the tokens that precede the choice's text.
  LogprobArrays(const Tokenizer& tokenizer, int top, int64_t skip = 0, std::span<const int64_t> before = {});
  ~LogprobArrays();
  LogprobArrays(LogprobArrays&&) noexcept;
  // in_text: false for tokens that are not part of the choice's text, such as stop tokens.
  void add(const ScoredToken& token, bool in_text = true);
  bool empty() const;
  nlohmann::ordered_json take();  // returns the entries that were added since the last call

 private:
  const Tokenizer* tokenizer_;
  int top_;
  int64_t skip_, offset_ = 0;
  TextStream text_;
  std::unique_ptr<nlohmann::ordered_json> arrays_;
};

// Returns one entry of logprobs.content of a chat completion.
nlohmann::ordered_json chat_logprob(const Tokenizer& tokenizer, const ScoredToken& token, int top);

}  // namespace lazy::serve
