// The generation engine: many requests on one model, in one batch that requests join and leave at every step.
//
// A thread of the engine runs the steps. A step continues every running request by one token (one pass for all), and
// computes one chunk of the prompt of the oldest request that waits for its prompt. Keys and values lie in pages of a
// pool of fixed size. A request starts once the pool has the pages that it can need at most, so memory is never
// exceeded and nothing that was begun is thrown away; until then it waits, in the order of arrival. Whole chunks of
// equal prompts share their pages.
//
// The tokens of a request depend on the request alone, not on what else is in the batch: passes have fixed shapes, so
// that products round alike (see EngineOptions::rows).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generate/sampler.h"
#include "model/language_model.h"

namespace lazy {

// A token of the prompt or of the text, with log-probabilities where they were asked for (nats, of the model's own
// distribution: before temperature, filters and penalties).
struct ScoredToken {
  int64_t id = 0;
  float logprob = 0;                              // NaN: none (the first token of a prompt; not asked for)
  std::vector<std::pair<int64_t, float>> likely;  // the most likely tokens at this place, most likely first
};

enum class FinishReason {
  stop,       // by a stop token, or by the receiver
  length,     // max_tokens
  cancelled,  // by Engine::cancel, or by the engine's end
  failed      // see Receiver::on_end's message
};

// What a request sends its results to. Called by the engine's thread: must return soon, and may call submit and cancel.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // The prompt's tokens, once, before the first token; only with prompt_logprobs.
  virtual void on_prompt(std::span<const ScoredToken> tokens) = 0;
  // One token of the text. stop_token: it is one of the request's stop tokens, and the last. Returns false to end the
  // text here (a stop string was found).
  virtual bool on_token(const ScoredToken& token, bool stop_token) = 0;
  // The last call. `message`: why, for `failed`.
  virtual void on_end(FinishReason reason, const std::string& message) = 0;
};

struct GenerationRequest {
  std::vector<int64_t> prompt;  // ids; at least one
  SamplingOptions sampling;
  int64_t max_tokens = 16;           // 0: only the prompt is read
  std::vector<int64_t> stop_tokens;  // each of these ends the text
  int logprobs = -1;                 // most likely tokens to report with each token; -1: no log-probabilities
  bool prompt_logprobs = false;      // the same for the prompt's tokens
};

struct EngineOptions {
  int64_t cache_bytes = int64_t{1} << 30;  // of keys, values and recurrent states of all requests
  int64_t page_tokens = 16;
  int64_t chunk = 256;         // tokens of a prompt a pass; prompts share whole chunks
  int64_t rows = 16;           // requests of a decoding pass; on a GPU one with fewer is padded
  int64_t max_running = 256;   // requests that are decoded at once
  int64_t max_waiting = 1024;  // requests that wait; more are refused
  std::optional<StreamingCache>
      streaming;  // of each request (model/kv_cache.h): constant memory for texts of any length
};

// A snapshot for /metrics.
struct EngineMetrics {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, free_pages = 0, shared_pages = 0;  // shared: kept for prompts to come
  int64_t requests = 0;                                 // that have ended
  int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
};

class Engine {
 public:
  using Id = uint64_t;
  enum class Refusal { none, queue_full, too_long, invalid, stopping };
  struct Submission {
    Id id = 0;
    Refusal refusal = Refusal::none;
    std::string message;  // why it was refused
  };

  // `model` must outlive the engine, and nothing else may use it meanwhile.
  Engine(LanguageModel& model, const EngineOptions& options);
  ~Engine();  // cancels what runs

  // Thread-safe, and do not wait. A refused request's receiver is not called.
  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver);
  void cancel(Id id);  // takes effect within a step; unknown or ended: nothing
  // Tokens of prompt and text together that a request may have at most: by the pool's size, and by the model's position
  // table where it has one.
  int64_t max_request_tokens() const;
  EngineMetrics metrics() const;
  // Finishes what was accepted, refuses what comes; returns when all has ended.
  void drain();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
