// Autoregressive generation with a KV cache; the prompt's keys and values are computed once.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generate/sampler.h"
#include "model/language_model.h"

namespace lazy {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 128;
  std::vector<int64_t> stop_tokens;  // each of these ends the text and is not part of it
};

struct Generation {
  std::vector<int64_t> tokens;  // without the prompt
  std::string finish_reason;    // "stop" by a stop token or the callback, "length" by max_tokens
};

class Generator {
 public:
  explicit Generator(LanguageModel& model, std::optional<StreamingCache> streaming = {})
      : model_(model), streaming_(streaming) {}
  // Prefills the KV cache in chunks. Error when the prompt is empty or has an id outside the vocabulary.
  void set_prompt(const std::vector<int64_t>& ids);
  // Generates one text; further calls with other seeds reuse the prefilled prompt. `on_token` gets each token as it is
  // sampled and ends the text by returning false.
  Generation run(const GenerateOptions& options, const std::function<bool(int64_t)>& on_token = nullptr);

 private:
  std::vector<float> step(const std::vector<int64_t>& ids);  // logits after the last id
  LanguageModel& model_;
  std::optional<StreamingCache> streaming_;
  KVCache cache_, prompt_cache_;  // prompt_cache_: after the prefill
  std::vector<float> prompt_logits_;
  TokenCounts prompt_tokens_;
};

}  // namespace lazy
