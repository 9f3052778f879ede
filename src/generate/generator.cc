#include "generate/generator.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "core/error.h"

namespace lazy {

namespace {

constexpr int64_t kPrefillChunk = 512;  // tokens a forward pass; bounds the memory of a long prompt

// Decodes small models on one thread. A token's matrix products take microseconds each, so that synchronizing a second
// thread costs as much as it saves, and far more on a busy machine.
class DecodeThreads {
 public:
  explicit DecodeThreads(const LanguageModel& model) : before_(at::get_num_threads()) {
    constexpr int64_t kSmall = 8'000'000;  // parameters; 32 MB, about a core's share of the caches
    if (model.device().is_cpu() && count_parameters(model.config()).total <= kSmall) at::set_num_threads(1);
  }
  ~DecodeThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  DecodeThreads(const DecodeThreads&) = delete;
  DecodeThreads& operator=(const DecodeThreads&) = delete;

 private:
  int before_;
};

}  // namespace

std::vector<float> Generator::step(const std::vector<int64_t>& ids) {
  const at::NoGradGuard guard;
  const auto n = static_cast<int64_t>(ids.size());
  const at::Tensor input = at::tensor(ids, at::kLong).unsqueeze(0).to(model_.device());
  const at::Tensor hidden = model_.forward(input, {.cache = &cache_}).hidden;
  const at::Tensor logits = model_.logits(hidden.select(1, n - 1)).to(at::kCPU).contiguous();
  const float* data = logits.const_data_ptr<float>();
  return {data, data + logits.numel()};
}

void Generator::set_prompt(const std::vector<int64_t>& ids) {
  if (ids.empty()) fail("generate", "the prompt is empty and there is no BOS token to begin with");
  for (const int64_t id : ids) {
    if (id < 0 || id >= model_.config().vocab_size) {
      fail("generate", "prompt: token {} is outside the model's vocabulary of {}", id, model_.config().vocab_size);
    }
  }
  cache_ = KVCache{.streaming = streaming_};
  for (size_t begin = 0; begin < ids.size(); begin += kPrefillChunk) {
    const size_t end = std::min(ids.size(), begin + kPrefillChunk);
    prompt_logits_ =
        step({ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  prompt_cache_ = cache_;
  prompt_tokens_.clear();
  for (const int64_t id : ids) ++prompt_tokens_[id].prompt;
}

Generation Generator::run(const GenerateOptions& options, const std::function<bool(int64_t)>& on_token) {
  if (prompt_cache_.length == 0) fail("generate", "no prompt was given");
  const DecodeThreads threads(model_);
  Sampler sampler(options.sampling);
  cache_ = prompt_cache_;  // the tokens of an earlier text are overwritten
  TokenCounts counts = prompt_tokens_;
  std::vector<float> logits = prompt_logits_;
  Generation out;
  while (static_cast<int64_t>(out.tokens.size()) < options.max_tokens) {
    const int64_t token = sampler.sample(logits, counts);
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end()) {
      out.finish_reason = "stop";
      return out;
    }
    out.tokens.push_back(token);
    ++counts[token].text;
    if (on_token && !on_token(token)) {
      out.finish_reason = "stop";
      return out;
    }
    if (static_cast<int64_t>(out.tokens.size()) < options.max_tokens) logits = step({token});
  }
  out.finish_reason = "length";
  return out;
}

}  // namespace lazy
