#include "serve/token_queue.h"

#include <utility>

namespace lazy {

void TokenQueue::on_prompt(std::span<const ScoredToken> tokens) {
  const std::lock_guard lock(mutex_);
  prompt_.assign(tokens.begin(), tokens.end());
}

bool TokenQueue::on_token(const ScoredToken& token, bool stop_token) {
  const std::lock_guard lock(mutex_);
  items_.push_back({token, stop_token});
  changed_.notify_all();
  return true;
}

void TokenQueue::on_end(FinishReason reason, const std::string& message) {
  const std::lock_guard lock(mutex_);
  reason_ = reason;
  message_ = message;
  ended_ = true;
  changed_.notify_all();
}

std::optional<TokenQueue::Item> TokenQueue::next(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return ended_ || !items_.empty(); });
  if (items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  return item;
}

bool TokenQueue::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_ && items_.empty();
}

}  // namespace lazy
