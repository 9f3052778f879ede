// A request's tokens, kept until another thread takes them.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/generation.h"

namespace lazy {

class TokenQueue : public Receiver {
 public:
  void on_prompt(std::span<const ScoredToken> tokens) override;
  bool on_token(const ScoredToken& token, bool stop_token) override;
  void on_end(FinishReason reason, const std::string& message) override;

  struct Item {
    ScoredToken token;
    bool stop_token = false;
  };
  // The next token; waits for it. Nothing after the last one, or when the time is over: see ended().
  std::optional<Item> next(std::chrono::milliseconds time = std::chrono::hours(24));
  // Every token was taken, and there will be no others.
  bool ended() const;
  // Afterwards:
  FinishReason reason() const { return reason_; }
  const std::string& message() const { return message_; }
  const std::vector<ScoredToken>& prompt() const { return prompt_; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::vector<ScoredToken> prompt_;
  bool ended_ = false;
  FinishReason reason_ = FinishReason::failed;
  std::string message_;
};

}  // namespace lazy
