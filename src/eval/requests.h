// Token windows that a model scores, and the conversion of texts and benchmark requests to windows.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy::eval {

// A piece of text that is scored in one sequence. The model computes the log-probability of each token in `targets`.
// The last targets.size() positions of `input` predict these tokens. input.size() >= targets.size() >= 1.
struct Window {
  std::vector<int32_t> input, targets;
  bool operator==(const Window&) const = default;
};

// Returns the rolling windows of lm-evaluation-harness. Every token is predicted exactly once. The first window
// predicts up to max_length tokens after `prefix`. The following windows have `context_length` tokens of context and
// predict max_length - context_length + 1 tokens. The last window is extended to the left to an input of max_length
// tokens, but it only scores the tokens that the previous windows have not scored. Requires 1 <= context_length <=
// max_length. Returns an empty list if `tokens` is empty.
std::vector<Window> rolling_windows(std::span<const int32_t> tokens, int32_t prefix, int64_t max_length,
                                    int64_t context_length = 1);
// Like rolling_windows, but every window starts with BOS in place of the preceding token. This is for models that were
// trained with BOS at the start of every sequence. BOS is not scored.
std::vector<Window> rolling_windows_with_bos(std::span<const int32_t> tokens, int32_t bos, int64_t max_length);

// A benchmark request: the likelihood of a continuation given a context, in token ids. The requests of one question
// (one per choice) are adjacent and usually share a prefix, which is computed only once.
struct Request {
  std::vector<int32_t> context, continuation;
  bool operator==(const Request&) const = default;
};

// Returns the window of a request by the rule of lm-evaluation-harness: the last max_length + 1 ids of context +
// continuation, where the final id is only a target. Throws Error if the continuation is empty or longer than
// max_length, or if the context is empty.
Window window_of(const Request& request, int64_t max_length);

// Returns the token before the first token of a text: BOS, or EOS for a vocabulary without BOS. Throws Error if both
// are missing.
int32_t prefix_token(const Tokenizer& tokenizer);
// Returns the BOS id of the tokenizer. Throws Error if it has none.
int32_t require_bos(const Tokenizer& tokenizer);

// Encodes texts to ids. The boundary between context and continuation follows the rule of lm-evaluation-harness.
class TextEncoder {
 public:
  // If `bos` is true, BOS is inserted before every text unless the text already starts with it (add_bos_token in
  // lm-evaluation-harness). Throws Error if the tokenizer has no BOS.
  TextEncoder(const Tokenizer& tokenizer, bool bos);
  std::vector<int32_t> encode(const std::string& text) const;

  // Encodes a context and its continuation. White space at the end of the context moves to the continuation. The ids of
  // the continuation are the ids of encode(context + continuation) without the first encode(context).size() ids. An
  // empty context is replaced by the prefix token; if the first id of the continuation is the same token, that id is
  // removed.
  Request encode_pair(const std::string& context, const std::string& continuation);
  int32_t prefix() const { return prefix_; }

 private:
  const Tokenizer& tokenizer_;
  bool bos_;
  int32_t prefix_;
  std::string bos_text_;  // text of the prefix token, to detect texts that already start with it
  // The last context and its ids are cached because all choices of a question share the context.
  std::string last_context_;
  std::vector<int32_t> last_ids_;
};

}  // namespace lazy::eval
