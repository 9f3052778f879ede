// Token windows that a model scores, and how texts and benchmark requests become windows.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy::eval {

// The unit of scoring: the model gives the log-probability of `targets`, which follow the last targets.size() tokens of
// `input` one by one. input.size() >= targets.size() >= 1.
struct Window {
  std::vector<int32_t> input, targets;
  bool operator==(const Window&) const = default;
};

// The rolling windows of lm-evaluation-harness; every token is predicted exactly once. The first window predicts up to
// max_length tokens after `prefix`. The next ones keep `context_length` tokens of context and predict
// max_length - context_length + 1. The last one is extended to the left to an input of max_length tokens, and only the
// remaining tokens are scored. 1 <= context_length <= max_length. No tokens, no windows.
std::vector<Window> rolling_windows(std::span<const int32_t> tokens, int32_t prefix, int64_t max_length,
                                    int64_t context_length = 1);
// The same with BOS first in every window, in place of the preceding token: for models that were trained with BOS first
// in every sequence. BOS is not scored.
std::vector<Window> rolling_windows_with_bos(std::span<const int32_t> tokens, int32_t bos, int64_t max_length);

// A benchmark's request: the likelihood of a continuation given a context, in token ids. Requests of one question (one
// a choice) are neighbours and mostly share a prefix, which is computed once.
struct Request {
  std::vector<int32_t> context, continuation;
  bool operator==(const Request&) const = default;
};

// The window of a request, by lm-evaluation-harness's rule: the last max_length + 1 ids of context + continuation, the
// final one only as a target. Error when the continuation is empty or longer than max_length, or the context is empty.
Window window_of(const Request& request, int64_t max_length);

// The token before a text's first one: BOS, or EOS for a vocabulary without BOS. Error without either.
int32_t prefix_token(const Tokenizer& tokenizer);
// The tokenizer's BOS; Error without one.
int32_t require_bos(const Tokenizer& tokenizer);

// Texts to ids, with lm-evaluation-harness's rule for the border between context and continuation.
class TextEncoder {
 public:
  // `bos`: put BOS before every text (the harness's add_bos_token) unless the text begins with it. Error when the
  // tokenizer has no BOS.
  TextEncoder(const Tokenizer& tokenizer, bool bos);
  std::vector<int32_t> encode(const std::string& text) const;

  // White space at the end of the context moves to the continuation. The continuation's ids are those of
  // encode(context + continuation) after the first encode(context).size(). An empty context becomes the prefix token;
  // where the continuation's first id is that token, it is dropped there.
  Request encode_pair(const std::string& context, const std::string& continuation);
  int32_t prefix() const { return prefix_; }

 private:
  const Tokenizer& tokenizer_;
  bool bos_;
  int32_t prefix_;
  std::string bos_text_;  // the prefix token decoded
  // The latest context and its ids: the choices of a question share it.
  std::string last_context_;
  std::vector<int32_t> last_ids_;
};

}  // namespace lazy::eval
