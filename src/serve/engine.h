// The generation engine: many requests on one model, in one batch that requests join and leave at every step.
//
// A thread of the engine runs the steps. A step continues every running request by one token (one pass for all), and
// computes one chunk of the prompt of the oldest request that waits for its prompt. Keys and values are stored in pages
// of a pool of fixed size. Whole chunks of equal prompts share their pages.
//
// Scheduling. Requests start in the order of arrival, as soon as the pages of their prompts are free, and pages are
// allocated as texts grow. If the pool is exhausted, the running request that may still generate the most tokens is
// preempted (of several the latest): its pages are freed and it returns to the queue. When it starts again, its prompt
// and text are computed again by passes over whole chunks. If a waiting request does not fit, later ones with a smaller
// limit may start before it, and a request may preempt running ones that may still generate more than twice the tokens
// that its prompt and text have in all. A short request therefore does not wait for open-ended ones, unless they are
// close to their limits or max_running sequences run. A request that has been overtaken 64 times may preempt any later
// one.
//
// The tokens of a request that is not preempted depend on the request alone, not on what else is in the batch: the
// products of a few rows do not depend on the other rows (ops/few_rows.h), and passes over prompts have one shape on a
// GPU. After a preemption the keys and values of the text come from prefill kernels, whose rounding differs from that
// of decoding steps.
//
// On a GPU tokens are sampled there, and a step is queued before the tokens of the last one are known
// (serve/device_steps.h). A request that ends with a token has one more computed, which is thrown away.
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
  int64_t cache_bytes = int64_t{1} << 30;  // of keys, values and recurrent states of all requests
  int64_t page_tokens = 16;
  int64_t chunk = 256;               // tokens of a prompt a pass; prompts share whole chunks
  int64_t rows = 16;                 // requests of a decoding pass, where the host samples
  int64_t max_running = 256;         // requests that are decoded at once
  int64_t max_waiting = 1024;        // requests that wait; more are refused
  int64_t max_model_len = 0;         // maximum tokens of prompt and text of a request; 0: the model's context length
  std::optional<bool> device_steps;  // serve/device_steps.h, where pages serve; default: on a GPU
  bool record_steps = true;          // these; false: kernel by kernel, for measurements and tests
  std::optional<StreamingCache>
      streaming;  // of each request (model/streaming_cache.h): constant memory for texts of any length
};

class Engine final : public GenerationService {
 public:
  // `model` must outlive the engine, and nothing else may use it meanwhile.
  Engine(LanguageModel& model, const EngineOptions& options);
  ~Engine() override;  // cancels what runs

  // Thread-safe, and do not wait. A refused request's receiver is not called.
  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) override;
  void cancel(Id id) override;  // takes effect within a step; unknown or ended: nothing
  // Calls `work` once, on the engine's thread between two steps, when the model is free for it; one at a time, in the
  // order of arrival. Its argument is false where it was cancelled or the engine ends: then it must not use the model.
  // Waiting work counts as waiting requests do. `work` must not throw.
  Submission run_between_steps(std::function<void(bool run)> work);
  // Maximum tokens of prompt and text of a request: the smaller one of the pool's capacity and max_model_len.
  int64_t max_request_tokens() const override;
  int64_t max_waiting() const override;
  // Tokens of one sequence that the cache holds when no other sequence has memory, whatever the model's limit is.
  int64_t cache_tokens() const;
  EngineMetrics metrics() const override;
  // Finishes what was accepted, refuses what comes; returns when all has ended.
  void drain() override;
  // Cancels what was accepted, refuses what comes; a drain() that waits returns after the current step.
  void abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
