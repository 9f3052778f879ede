#include "eval/requests.h"

#include <algorithm>

#include "core/error.h"
#include "eval/python.h"

namespace lazy::eval {

std::vector<Window> rolling_windows(std::span<const int32_t> tokens, int32_t prefix, int64_t max_length,
                                    int64_t context_length) {
  if (context_length < 1 || context_length > max_length) {
    fail("eval", "context length: expected 1 to {} (the maximum length), found {}", max_length, context_length);
  }
  std::vector<Window> windows;
  const auto total = static_cast<int64_t>(tokens.size());
  if (total == 0) return windows;
  const auto slice = [&](int64_t begin, int64_t end) {
    return std::vector<int32_t>(tokens.begin() + begin, tokens.begin() + end);
  };

  const int64_t first = std::min(max_length, total);
  Window window{{prefix}, slice(0, first)};
  window.input.insert(window.input.end(), tokens.begin(), tokens.begin() + first - 1);
  windows.push_back(std::move(window));
  for (int64_t predicted = first; predicted < total;) {
    const int64_t count = std::min(total - predicted, max_length - context_length + 1);
    const int64_t end = predicted + count;
    windows.push_back({slice(end - max_length - 1, end - 1), slice(end - count, end)});
    predicted = end;
  }
  return windows;
}

std::vector<Window> rolling_windows_with_bos(std::span<const int32_t> tokens, int32_t bos, int64_t max_length) {
  std::vector<Window> windows = rolling_windows(tokens, bos, max_length);
  for (Window& window : windows) window.input[0] = bos;
  return windows;
}

Window window_of(const Request& request, int64_t max_length) {
  const auto count = static_cast<int64_t>(request.continuation.size());
  if (count < 1 || count > max_length) {
    fail("eval", "continuation: expected 1 to {} tokens (the maximum length), found {}", max_length, count);
  }
  if (request.context.empty()) fail("eval", "context: expected at least one token before the continuation, found none");
  std::vector<int32_t> input = request.context;
  input.insert(input.end(), request.continuation.begin(), request.continuation.end() - 1);
  const auto surplus = static_cast<int64_t>(input.size()) - max_length;
  if (surplus > 0) input.erase(input.begin(), input.begin() + surplus);
  return {std::move(input), request.continuation};
}

int32_t prefix_token(const Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos_id()) return *bos;
  if (const auto eos = tokenizer.eos_id()) return *eos;
  fail("eval",
       "the {} tokenizer has neither a BOS nor an EOS token, but BOS or EOS is needed before the first token of a text",
       tokenizer.kind());
}

int32_t require_bos(const Tokenizer& tokenizer) {
  if (const auto bos = tokenizer.bos_id()) return *bos;
  fail("eval", "--bos: the {} tokenizer has no BOS token", tokenizer.kind());
}

TextEncoder::TextEncoder(const Tokenizer& tokenizer, bool bos)
    : tokenizer_(tokenizer), bos_(bos), prefix_(prefix_token(tokenizer)) {
  if (bos) require_bos(tokenizer);
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
  const std::string stripped(python_rstrip(context));
  if (stripped != last_context_ || last_ids_.empty()) {
    last_ids_ = encode(stripped);
    last_context_ = stripped;
  }
  const std::vector<int32_t> whole = encode(context + continuation);
  const size_t begin = std::min(last_ids_.size(), whole.size());
  return {last_ids_, {whole.begin() + static_cast<int64_t>(begin), whole.end()}};
}

}  // namespace lazy::eval
