// Interface between the server and a generation engine: requests go in, tokens come back. It does not depend on Torch,
// so that the HTTP protocol can be compiled and tested without Torch.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "generate/sampler.h"

namespace lazy {

// A prompt token or a generated token, with log-probabilities if the request asks for them. Log-probabilities are in
// nats and refer to the model's unmodified distribution, before temperature, filters and penalties.
struct ScoredToken {
  int64_t id = 0;
  float logprob = 0;  // NaN if not requested, and for the first prompt token
  // Ids and log-probabilities of the most likely tokens at this position, most likely first.
  std::vector<std::pair<int64_t, float>> likely;
};

enum class FinishReason {
  stop,       // a stop token was sampled, or Receiver::on_token returned false
  length,     // max_tokens was reached
  cancelled,  // cancel() was called, or the engine was shut down
  failed      // an error occurred; Receiver::on_end receives its message
};

// Receives the results of one request. The engine's thread calls the functions; they must return quickly and may call
// submit and cancel.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // Called exactly once with the scored prompt tokens, before the first generated token, but only if prompt_logprobs is
  // set.
  virtual void on_prompt(std::span<const ScoredToken> tokens) = 0;
  // Called for each generated token. stop_token: the token is one of the request's stop tokens and therefore the last
  // token. The function returns false to end the generation after this token, for example after a stop string.
  virtual bool on_token(const ScoredToken& token, bool stop_token) = 0;
  // Called exactly once, after all other calls. `message` is the error message if the reason is `failed`.
  virtual void on_end(FinishReason reason, const std::string& message) = 0;
};

struct GenerationRequest {
  std::vector<int64_t> prompt;  // token ids; at least one
  SamplingOptions sampling;
  int64_t max_tokens = 16;           // 0: only the prompt is processed
  std::vector<int64_t> stop_tokens;  // sampling one of these ids ends the text
  int logprobs = -1;                 // number of most likely tokens to report per generated token; -1: none
  bool prompt_logprobs = false;      // also report the log-probabilities of the prompt tokens
};

// Snapshot of the engine's counters for /metrics.
struct EngineMetrics {
  int64_t running = 0, waiting = 0;
  // shared_pages: pages that no request uses and that are retained for later prompts with the same beginning (prefix
  // caching).
  int64_t pages = 0, free_pages = 0, shared_pages = 0;
  int64_t requests = 0;  // finished requests
  int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  int64_t preemptions = 0;  // sequences whose memory was freed and that are recomputed later
};

// All member functions are thread-safe.
class GenerationService {
 public:
  using Id = uint64_t;
  enum class Refusal { none, queue_full, too_long, invalid, stopping };
  struct Submission {
    Id id = 0;
    Refusal refusal = Refusal::none;
    std::string message;  // reason for the refusal
  };

  virtual ~GenerationService() = default;
  // Does not block. If a request is refused, its receiver is not called.
  virtual Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) = 0;
  virtual void cancel(Id id) = 0;  // takes effect within one step; ignores unknown and finished ids
  // Maximum number of prompt and generated tokens per request.
  virtual int64_t max_request_tokens() const = 0;
  // Maximum number of waiting requests. submit() refuses further requests with `queue_full`.
  virtual int64_t max_waiting() const = 0;
  virtual EngineMetrics metrics() const = 0;
  // Completes all accepted requests and refuses new ones. Returns when every accepted request has ended.
  virtual void drain() = 0;
};

}  // namespace lazy
