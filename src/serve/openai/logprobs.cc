#include "serve/openai/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/text.h"

namespace lazy::serve {
using Json = nlohmann::ordered_json;

namespace {

constexpr double kImpossible = -9999;  // replaces a log-probability of minus infinity, as in vLLM

Json empty_arrays() {
  return {{"tokens", Json::array()},
          {"token_logprobs", Json::array()},
          {"top_logprobs", Json::array()},
          {"text_offset", Json::array()}};
}

}  // namespace

std::string token_bytes(const Tokenizer& tokenizer, int64_t id) {
  return id < tokenizer.vocab_size() ? tokenizer.piece(static_cast<int32_t>(id)) : "";
}

std::string token_text(const Tokenizer& tokenizer, int64_t id) {
  std::string piece = token_bytes(tokenizer, id);
  if (to_valid_utf8(piece) == piece) return piece;
  std::string out = "bytes:";
  for (const char byte : piece) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return out;
}

Json logprob_json(float logprob) {
  if (std::isnan(logprob)) return nullptr;
  return std::isinf(logprob) ? kImpossible : static_cast<double>(logprob);
}

Json top_logprobs(const Tokenizer& tokenizer, const ScoredToken& token, int top) {
  if (std::isnan(token.logprob)) return nullptr;
  Json out = Json::object();
  const auto add = [&](int64_t id, float logprob) {
    std::string text = token_text(tokenizer, id);
    if (out.contains(text)) text = fmt::format("token_id:{}", id);
    out[text] = logprob_json(logprob);
  };
  const size_t count = std::min(token.likely.size(), static_cast<size_t>(std::max(top, 0)));
  const auto end = token.likely.begin() + static_cast<std::ptrdiff_t>(count);
  const bool listed =
      std::any_of(token.likely.begin(), end, [&](const auto& entry) { return entry.first == token.id; });
  // Two tokens may have the same text. The text of the sampled token is therefore reserved for this token before the
  // other tokens are added. If the sampled token is among the most likely tokens, it is added at the position of its
  // rank.
  const std::string own = token_text(tokenizer, token.id);
  if (!listed) add(token.id, token.logprob);
  for (auto it = token.likely.begin(); it != end; ++it) {
    const auto& [id, logprob] = *it;
    if (id == token.id) {
      out[own] = logprob_json(token.logprob);
    } else if (listed && token_text(tokenizer, id) == own) {
      out[fmt::format("token_id:{}", id)] = logprob_json(logprob);
    } else {
      add(id, logprob);
    }
  }
  return out;
}

LogprobArrays::LogprobArrays(const Tokenizer& tokenizer, int top, int64_t skip, std::span<const int64_t> before)
    : tokenizer_(&tokenizer),
      top_(top),
      skip_(skip),
      text_(tokenizer, before),
      arrays_(std::make_unique<Json>(empty_arrays())) {}
LogprobArrays::~LogprobArrays() = default;
LogprobArrays::LogprobArrays(LogprobArrays&&) noexcept = default;

void LogprobArrays::add(const ScoredToken& token, bool in_text) {
  Json& arrays = *arrays_;
  arrays["tokens"].push_back(token_text(*tokenizer_, token.id));
  arrays["token_logprobs"].push_back(logprob_json(token.logprob));
  arrays["top_logprobs"].push_back(top_logprobs(*tokenizer_, token, top_));
  arrays["text_offset"].push_back(std::max<int64_t>(0, offset_ - skip_));
  if (in_text && token.id < tokenizer_->vocab_size()) offset_ += count_characters(text_.push(token.id));
}

bool LogprobArrays::empty() const { return (*arrays_)["tokens"].empty(); }

Json LogprobArrays::take() {
  Json out = empty_arrays();
  std::swap(out, *arrays_);
  return out;
}

Json chat_logprob(const Tokenizer& tokenizer, const ScoredToken& token, int top) {
  const auto entry = [&](int64_t id, float logprob) {
    const std::string piece = token_bytes(tokenizer, id);
    Json bytes = Json::array();
    for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
    return Json{{"token", token_text(tokenizer, id)}, {"logprob", logprob_json(logprob)}, {"bytes", std::move(bytes)}};
  };
  Json out = entry(token.id, token.logprob);
  Json likely = Json::array();
  for (size_t i = 0; i < token.likely.size() && static_cast<int>(i) < top; ++i) {
    likely.push_back(entry(token.likely[i].first, token.likely[i].second));
  }
  out["top_logprobs"] = std::move(likely);
  return out;
}

}  // namespace lazy::serve
