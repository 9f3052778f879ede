// Receiver that stores the tokens of a request until another thread takes them.
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
  // Waits for the next token and returns it. Returns nullopt after the last token or when `time` has elapsed; ended()
  // distinguishes these two cases.
  std::optional<Item> next(std::chrono::milliseconds time = std::chrono::hours(24));
  // True if all tokens have been taken and the request has ended.
  bool ended() const;
  // The following functions may only be called after ended() has returned true.
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
