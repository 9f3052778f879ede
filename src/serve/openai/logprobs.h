// Log-probabilities as OpenAI's completions report them: parallel arrays over tokens.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "generate/text_stream.h"
#include "serve/generation.h"

namespace lazy::serve {

// A token's piece; nothing for ids that only the model has (padding of its vocabulary).
std::string token_bytes(const Tokenizer& tokenizer, int64_t id);
// The text that stands for a token: its piece, or "bytes:\xe2\x80" where that is no complete UTF-8, as OpenAI writes
// it.
std::string token_text(const Tokenizer& tokenizer, int64_t id);

// A finite number for JSON: null for NaN (no log-probability), -9999 for minus infinity. The same float gives the same
// digits wherever it is written.
nlohmann::ordered_json logprob_json(float logprob);

// `top` most likely tokens and the token itself, which comes first if it is not among them: {text: log-probability}.
// Of two tokens with one text, the token itself keeps the text, else the likelier one; the other becomes
// "token_id:17".
nlohmann::ordered_json top_logprobs(const Tokenizer& tokenizer, const ScoredToken& token, int top);

// tokens, token_logprobs, top_logprobs and text_offset of one choice. Offsets count characters (Unicode code points)
// of the choice's text.
class LogprobArrays {
 public:
  // `skip`: characters of the first pieces that the text does not have (SentencePiece's first space).
  // `before`: the tokens that the text follows.
  LogprobArrays(const Tokenizer& tokenizer, int top, int64_t skip = 0, std::span<const int64_t> before = {});
  ~LogprobArrays();
  LogprobArrays(LogprobArrays&&) noexcept;
  // in_text: false for a stop token, which the text does not have.
  void add(const ScoredToken& token, bool in_text = true);
  bool empty() const;
  nlohmann::ordered_json take();  // what was added since the last call

 private:
  const Tokenizer* tokenizer_;
  int top_;
  int64_t skip_, offset_ = 0;
  TextStream text_;
  std::unique_ptr<nlohmann::ordered_json> arrays_;
};

// One entry of chat's logprobs.content.
nlohmann::ordered_json chat_logprob(const Tokenizer& tokenizer, const ScoredToken& token, int top);

}  // namespace lazy::serve
