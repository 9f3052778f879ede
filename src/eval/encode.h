// Texts to the ids that are scored, by lm-evaluation-harness's rule for the border between context and continuation.
#pragma once
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/request.h"

namespace lazy::eval {

// What the first token of a text is predicted from: BOS, or EOS for a vocabulary without one. Error without either.
int32_t prefix_token(const Tokenizer& tokenizer);

class TextEncoder {
 public:
  // `bos`: BOS before every text (add_bos_token there), unless the text begins with it. Error when there is none.
  TextEncoder(const Tokenizer& tokenizer, bool bos);
  std::vector<int32_t> encode(const std::string& text) const;

  // White space at the context's end moves to the continuation, whose ids are what encode(context + continuation) has
  // behind the first encode(context).size(). An empty context is the prefix token, which the continuation's first id
  // replaces when it is the same.
  Request encode_pair(const std::string& context, const std::string& continuation);
  int32_t prefix() const { return prefix_; }

 private:
  const Tokenizer& tokenizer_;
  bool bos_;
  int32_t prefix_;
  std::string bos_text_;  // as it would stand in a text
  std::string last_context_;
  std::vector<int32_t> last_ids_;  // a question's choices share their context
};

}  // namespace lazy::eval
