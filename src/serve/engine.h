// Generation engine with continuous batching: many requests share one model, and requests join and leave the batch at
// every step.
//
// The engine runs its steps on a separate thread. A step generates one token for every running request, in one forward
// pass for all of them. It also processes the next prompt chunks in the order of arrival: one chunk if tokens are
// sampled on the host, or as many chunks as fit in one packed pass (serve/prefill_runner.h) if tokens are sampled on
// the device. Keys and values are stored in the pages of a fixed-size pool (paged KV cache). Prompts that begin with
// the same whole chunks share the pages of these chunks (prefix caching).
//
// Scheduling. Requests start in the order of arrival, as soon as the pages of their prompts are free. Further pages are
// allocated as the sequences grow. If the pool is exhausted, the running request with the most remaining tokens is
// preempted; among equal requests, the latest one. Its pages are freed and it returns to the queue. When it starts
// again, prefill passes recompute its prompt and its generated tokens. If a waiting request does not fit, later
// requests with fewer remaining tokens may start before it. A waiting request may also preempt running requests whose
// remaining tokens exceed twice its own total length (existing plus remaining tokens). A short request therefore does
// not wait for requests with a very large token limit, unless these are close to their limits or max_running sequences
// are active. If 64 later requests have started before a waiting request, it may preempt any later request.
//
// Determinism. The tokens of a request that is not preempted depend only on the request, not on the other requests in
// the batch: small-batch matrix products compute each row independently of the other rows (ops/skinny_gemm.h), and
// prefill passes have one fixed shape on a GPU. After a preemption, prefill kernels recompute the keys and values of
// the generated tokens. Their rounding differs from the rounding of decode steps.
//
// On a GPU, tokens are sampled on the device, and a step is queued before the tokens of the previous step are known
// (serve/decode_runner.h). When a request ends, one more token may already have been computed for it. This token is
// discarded.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/streaming_cache.h"
#include "serve/generation.h"

namespace lazy {

class LanguageModel;

struct EngineOptions {
  int64_t cache_bytes = int64_t{1} << 30;  // bytes for keys, values and recurrent states of all requests
  int64_t page_tokens = 16;
  int64_t chunk = 256;         // number of prompt tokens per prefill chunk; prompts share only whole chunks
  int64_t rows = 16;           // number of sequences per decode pass if tokens are sampled on the host
  int64_t max_running = 256;   // maximum number of sequences that are decoded concurrently
  int64_t max_waiting = 1024;  // maximum number of waiting requests; further requests are refused
  // Maximum number of prompt and generated tokens per request; 0: the model's context length.
  int64_t max_model_len = 0;
  // Whether tokens are sampled on the device (decode_runner.h), which requires a paged cache. Default: true on GPUs
  // only.
  std::optional<bool> decode_runner;
  bool record_steps = true;  // replay passes as CUDA graphs; false: launch each kernel (for tests)
  // If set, each request has a streaming cache (model/streaming_cache.h), whose size does not grow with the text.
  std::optional<StreamingCache> streaming;
};

class Engine final : public GenerationService {
 public:
  // `model` must outlive the engine. Nothing else may use the model while the engine exists.
  Engine(LanguageModel& model, const EngineOptions& options);
  ~Engine() override;  // cancels all running and waiting requests

  // submit() and cancel() are thread-safe and do not block. If a request is refused, its receiver is not called.
  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) override;
  void cancel(Id id) override;  // takes effect within one step; ignores unknown and finished ids
  // Calls `work` exactly once on the engine's thread between two steps, while no step uses the model. Jobs run in the
  // order of arrival, at most one job between two steps. The argument of `work` is false if the job was cancelled or
  // the engine is shutting down; `work` must not use the model in this case. Queued jobs count as waiting requests.
  // `work` must not throw.
  Submission run_between_steps(std::function<void(bool run)> work);
  // Maximum number of prompt and generated tokens per request: the smaller of the cache capacity and the length limit
  // (EngineOptions::max_model_len or the model's context length).
  int64_t max_request_tokens() const override;
  int64_t max_waiting() const override;
  // Number of tokens that the cache can hold for a single sequence if no other sequence uses memory. The number does
  // not depend on the model's length limit.
  int64_t cache_tokens() const;
  EngineMetrics metrics() const override;
  // Completes all accepted requests and refuses new ones. Returns when every accepted request has ended.
  void drain() override;
  // Cancels all accepted requests and refuses new ones. A concurrent drain() returns after the current step.
  void abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
