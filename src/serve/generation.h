// What a server asks of a generation engine: requests go in, tokens come back. No Torch, so that the protocol is
// compiled and tested without it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generate/sampler.h"

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
  cancelled,  // by cancel, or by the engine's end
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

// A snapshot for /metrics.
struct EngineMetrics {
  int64_t running = 0, waiting = 0;
  int64_t pages = 0, free_pages = 0, shared_pages = 0;  // shared: kept for prompts to come
  int64_t requests = 0;                                 // that have ended
  int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  int64_t preemptions = 0;  // sequences whose memory was taken, to be computed again later
};

// All members are thread-safe.
class GenerationService {
 public:
  using Id = uint64_t;
  enum class Refusal { none, queue_full, too_long, invalid, stopping };
  struct Submission {
    Id id = 0;
    Refusal refusal = Refusal::none;
    std::string message;  // why it was refused
  };

  virtual ~GenerationService() = default;
  // Does not wait. A refused request's receiver is not called.
  virtual Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) = 0;
  virtual void cancel(Id id) = 0;  // takes effect within a step; unknown or ended: nothing
  // Tokens of prompt and text together that a request may have at most.
  virtual int64_t max_request_tokens() const = 0;
  // Requests that can wait at once; submit refuses further ones with `queue_full`.
  virtual int64_t max_waiting() const = 0;
  virtual EngineMetrics metrics() const = 0;
  // Finishes what was accepted, refuses what comes; returns when all has ended.
  virtual void drain() = 0;
};

}  // namespace lazy
