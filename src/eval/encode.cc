#include "eval/encode.h"

#include "core/error.h"
#include "eval/python_text.h"

namespace lazy::eval {

int32_t prefix_token(const Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos_id()) return *bos;
  if (const auto eos = tokenizer.eos_id()) return *eos;
  fail("eval", "the {} tokenizer has neither a BOS nor an EOS token to predict a text's first token from",
       tokenizer.kind());
}

TextEncoder::TextEncoder(const Tokenizer& tokenizer, bool bos)
    : tokenizer_(tokenizer), bos_(bos), prefix_(prefix_token(tokenizer)) {
  if (bos && !tokenizer.bos_id()) fail("eval", "--bos: the {} tokenizer has no BOS token", tokenizer.kind());
  bos_text_ = tokenizer.decode(std::vector<int32_t>{prefix_});
}

std::vector<int32_t> TextEncoder::encode(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer_.encode(text);
  if (bos_ && (bos_text_.empty() || !text.starts_with(bos_text_))) ids.insert(ids.begin(), prefix_);
  return ids;
}

Request TextEncoder::encode_pair(const std::string& context, const std::string& continuation) {
  if (context.empty()) {
    std::vector<int32_t> ids = tokenizer_.encode(continuation);
    if (ids.empty() || ids[0] != prefix_) return {{prefix_}, std::move(ids)};
    return {{prefix_}, {ids.begin() + 1, ids.end()}};
  }
  const std::string kept(python_rstrip(context));
  if (kept != last_context_ || last_ids_.empty()) {
    last_ids_ = encode(kept);
    last_context_ = kept;
  }
  const std::vector<int32_t> whole = encode(context + continuation);
  const size_t begin = std::min(last_ids_.size(), whole.size());
  return {last_ids_, {whole.begin() + static_cast<int64_t>(begin), whole.end()}};
}

}  // namespace lazy::eval
