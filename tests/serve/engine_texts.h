// Common parts of the engine tests: small models, requests, and a receiver that collects the results.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/language_model.h"
#include "serve/engine.h"

namespace lazy::engine_texts {

inline ModelConfig small(const std::string& kind = "lazy") {
  ModelConfig c{.vocab_size = 211,
                .hidden_size = 32,
                .num_layers = 3,
                .max_length = 4096,
                .attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8},
                .mlp = {.intermediate_size = 48}};
  c.init_std = 0.3;
  if (kind == "lazy") {
    c.attention.normalizer = Normalizer::elastic;
    c.attention.distance_bias_window = 12;
  }
  if (kind == "window") {
    c.family = ModelFamily::mistral;
    c.attention.window = 20;
  }
  if (kind == "sink") c.attention.normalizer = Normalizer::softmax_sink;
  if (kind == "learned") c.positions.kind = PositionKind::learned;
  if (kind == "sinusoidal") c.positions.kind = PositionKind::sinusoidal;
  if (kind == "alibi") c.positions.kind = PositionKind::alibi;
  if (kind == "none") c.positions.kind = PositionKind::none;
  if (kind == "longrope") {
    c.positions.rope_scaling = {.type = "longrope", .factor = 4, .original_length = 40};
    c.positions.rope_scaling.pair_factors = {1, 1.5, 1.1, 2};
    c.positions.long_pair_factors = {1.5, 3, 20, 5};
  }
  return c;
}

inline std::vector<int64_t> greedy_by_full_forwards(LanguageModel& model, std::vector<int64_t> ids, int64_t n) {
  const at::NoGradGuard guard;
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) {
    const at::Tensor hidden = model.forward(at::tensor(ids, at::kLong).unsqueeze(0)).hidden;
    const at::Tensor logits = model.logits(hidden.select(1, static_cast<int64_t>(ids.size()) - 1));
    out.push_back(logits.argmax().item<int64_t>());
    ids.push_back(out.back());
  }
  return out;
}

class Collector : public Receiver {
 public:
  void on_prompt(std::span<const ScoredToken> tokens) override { prompt.assign(tokens.begin(), tokens.end()); }
  bool on_token(const ScoredToken& token, bool stop_token) override {
    const std::lock_guard lock(mutex_);
    tokens.push_back(token);
    stopped = stop_token;
    changed_.notify_all();
    return static_cast<int64_t>(tokens.size()) != most;
  }
  void on_end(FinishReason why, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    reason = why;
    message = text;
    ended_ = true;
    ++ends;
    changed_.notify_all();
  }
  Collector& wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [&] { return ended_; }));
    return *this;
  }
  bool wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(120), [&] { return tokens.size() >= count || ended_; });
  }
  std::vector<int64_t> ids() const {
    std::vector<int64_t> out;
    for (const ScoredToken& token : tokens) out.push_back(token.id);
    return out;
  }

  std::vector<ScoredToken> prompt, tokens;
  FinishReason reason = FinishReason::failed;
  std::string message;
  bool stopped = false;
  int ends = 0;
  int64_t most = -1;  // maximum number of tokens before this receiver ends the text; -1: no limit

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

inline std::vector<int64_t> prompt(size_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> out(length);
  for (int64_t& id : out) id = static_cast<int64_t>(random() % 211);
  return out;
}

inline GenerationRequest request(std::vector<int64_t> ids, int64_t max_tokens, const SamplingOptions& sampling) {
  return {.prompt = std::move(ids), .sampling = sampling, .max_tokens = max_tokens};
}

inline std::shared_ptr<Collector> submit(Engine& engine, const GenerationRequest& request) {
  auto collector = std::make_shared<Collector>();
  const auto submission = engine.submit(request, collector);
  EXPECT_EQ(submission.refusal, Engine::Refusal::none) << submission.message;
  return collector;
}

inline constexpr EngineOptions kSmall{.cache_bytes = 8 << 20, .page_tokens = 8, .chunk = 16, .rows = 4};

inline bool same(const std::vector<ScoredToken>& a, const std::vector<ScoredToken>& b) {
  if (a.size() != b.size()) return false;
  for (size_t n = 0; n < a.size(); ++n) {
    const bool equal = a[n].logprob == b[n].logprob || (std::isnan(a[n].logprob) && std::isnan(b[n].logprob));
    if (a[n].id != b[n].id || !equal || a[n].likely != b[n].likely) return false;
  }
  return true;
}

}  // namespace lazy::engine_texts
