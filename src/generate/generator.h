// Text after a prompt, one token at a time, with the prompt's keys and values computed once.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "generate/sampler.h"
#include "model/language_model.h"

namespace lazy {

struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 128;
  std::vector<int64_t> stop_tokens;  // the first of these ends the text and is not part of it
};

struct Generation {
  std::vector<int64_t> tokens;  // the prompt's excluded
  std::string finish_reason;    // "stop": a stop token or the callback, "length": max_tokens
};

class Generator {
 public:
  explicit Generator(LanguageModel& model, std::optional<StreamingCache> streaming = {})
      : model_(model), streaming_(streaming) {}
  // Computes the prompt, in chunks. Error when it is empty or holds an id outside the vocabulary.
  void set_prompt(const std::vector<int64_t>& ids);
  // May be called again, with another seed, for another text after the same prompt.
  // `on_token` sees each token as it is picked; false ends the text.
  Generation run(const GenerateOptions& options, const std::function<bool(int64_t)>& on_token = nullptr);

 private:
  std::vector<float> step(const std::vector<int64_t>& ids);  // logits after the last of them
  LanguageModel& model_;
  std::optional<StreamingCache> streaming_;
  KVCache cache_, prompt_cache_;  // prompt_cache_: as the prompt left it
  std::vector<float> prompt_logits_;
  std::unordered_set<int64_t> prompt_tokens_;
};

}  // namespace lazy
