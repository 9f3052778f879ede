// Implementation class of the engine. Its functions are defined in three files: engine.cc has the queue and the main
// loop, engine_scheduling.cc has memory allocation and preemption, and engine_passes.cc has the forward passes and the
// processing of sampled tokens.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "core/log.h"
#include "model/language_model.h"
#include "serve/decode_runner.h"
#include "serve/engine.h"
#include "serve/kv_cache_manager.h"

namespace lazy {

struct Engine::Impl {
  struct Sequence : std::enable_shared_from_this<Sequence> {
    explicit Sequence(const SamplingOptions& sampling) : sampler(sampling) {}

    Id id = 0;
    GenerationRequest request;
    std::shared_ptr<Receiver> receiver;
    Sampler sampler;
    TokenCounts seen;
    std::vector<int64_t> ids;                        // prompt tokens, then generated tokens
    std::vector<ScoredToken> prompt;                 // scored prompt tokens, if prompt_logprobs is set
    std::unique_ptr<KvCacheManager::Memory> memory;  // null while the request waits
    // Number of tokens whose keys or states are in memory, including tokens of decode steps that are still queued.
    int64_t computed = 0;
    // Number of leading tokens of `ids` that prefill passes compute: the prompt or, after a preemption, all tokens that
    // existed when the sequence started again.
    int64_t to_read = 0;
    int64_t prompt_read = 0;   // number of prompt tokens that were computed at least once
    bool prompt_sent = false;  // whether on_prompt was called
    int overtaken = 0;         // number of later requests that started while this one waited
    // The following two members are used only if tokens are sampled on the device (DecodeRunner).
    int64_t slot = -1;    // index of the sequence in the buffers of DecodeRunner; -1: none
    int64_t sampled = 0;  // number of generated tokens whose sampling was queued
    bool ended = false;

    int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
    int64_t size() const { return static_cast<int64_t>(ids.size()); }
    bool in_prompt() const { return computed < to_read; }
    bool wants_prompt() const { return request.prompt_logprobs && !prompt_sent; }
    // Number of tokens that the sequence may still generate.
    int64_t remaining() const { return std::max<int64_t>(0, request.max_tokens - (size() - prompt_size())); }
  };

  struct Job {
    Id id;
    std::function<void(bool run)> work;
  };

  // A step that has been queued on the device and whose sampled tokens the host has not yet read.
  struct Queued {
    std::unique_ptr<DecodeRunner::SampledTokens> result;
    std::vector<std::shared_ptr<Sequence>> sequences;
  };

  Impl(LanguageModel& model, const EngineOptions& options);
  ~Impl();

  int64_t max_request_tokens() const;
  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver);
  Submission run_between_steps(std::function<void(bool)> work);
  // The caller must hold the mutex. Calls add() with a new id, unless the queue is full or the engine is stopping.
  template <typename Add>
  Submission enqueue(const Add& add);
  // Cancels all running and waiting requests and refuses new ones.
  void abandon();

  // Main loop of the engine's thread.
  void run();
  // Delays the first step briefly, so that requests that arrive at almost the same time share one prefill pass.
  void wait_for_burst(std::unique_lock<std::mutex>& lock);
  // Waits for work, moves new requests to `waiting` and ends cancelled requests. Returns false when the engine is
  // stopping and no work remains.
  bool begin_step();
  // Runs at most one job per step so that generation is not blocked. The job is dequeued when it has finished; until
  // then, the engine is not treated as idle.
  void run_job();
  void end(Sequence& s, FinishReason reason, const std::string& message = "");
  // Publishes the counters that metrics() returns and submit() checks.
  void publish();

  // The following functions are defined in engine_scheduling.cc.
  //
  // Starts waiting requests (see "Scheduling" in engine.h).
  void admit();
  // Allocates memory for the sequence and makes it active, preempting other sequences if necessary. Returns false if
  // the sequence does not fit or max_running sequences are active.
  bool start(const std::shared_ptr<Sequence>& sequence);
  // Extends the memory of each sequence in `texts` by one token. Sequences that are preempted to free memory are
  // removed from `texts`.
  void reserve(std::vector<Sequence*>& texts);
  // True if the sequence needs no further decode step, because the sampling of all its tokens has already been queued
  // on the device. The host may not have read these tokens yet.
  bool wants_no_step(const Sequence& s) const { return store->decode_runner() && s.sampled >= s.request.max_tokens; }
  // Frees the memory of an active sequence and returns the sequence to the queue. The host must have received all of
  // its sampled tokens. The caller removes the sequence from `active`.
  void preempt(Sequence& s);

  // The following functions are defined in engine_passes.cc.
  //
  // Runs one pass over the next prompt chunks in the order of arrival. After the last chunk of a prompt, the first
  // token is sampled. A pass that scores prompt tokens rounds differently from other passes (see
  // KvCacheManager::extend). A pass therefore contains either only requests with prompt_logprobs or only requests
  // without it, so that the other requests do not change the results of a request.
  void read_prompts();
  // Samples the first token of each sequence in `begun`. `last` contains the hidden state (1, hidden_size) of each
  // prompt's last token.
  void begin_texts(const std::vector<Sequence*>& begun, const std::vector<at::Tensor>& last);
  // Splits `all` into consecutive groups that fit into one device step. Calls work(group, index of its first sequence
  // in `all`) for each group.
  template <typename Work>
  void for_rows(const std::vector<Sequence*>& all, const Work& work);
  // Calls work(rows), which queues a device step that samples one token for each sequence in `some`, and appends the
  // step to `queued`.
  template <typename Work>
  void queue(const std::vector<Sequence*>& some, const Work& work);
  // Queues a decode step for the sequences that need more tokens than are already queued.
  void queue_steps(std::vector<Sequence*> texts);
  // Reads the tokens of all queued steps except the newest `left` steps.
  void receive(size_t left);
  // Appends the log-probabilities of prompt tokens to s.prompt. `hidden` contains the hidden states of the tokens from
  // s.computed on.
  void score_prompt(Sequence& s, const at::Tensor& hidden);
  // Runs one decode pass for all sequences in `texts` and samples their next tokens on the host.
  void continue_texts(const std::vector<Sequence*>& texts);
  // Samples the next token from `logits` on the host and passes it to take().
  void accept(Sequence& s, std::span<float> logits);
  // Appends `token` to the sequence, sends it to the receiver, and ends the sequence if a stop condition is met.
  void take(Sequence& s, const ScoredToken& token);

  // Runs work(sequences). If it throws, only these sequences end, with FinishReason::failed.
  template <typename Work>
  void guarded(std::vector<Sequence*> sequences, const Work& work) {
    std::erase(sequences, nullptr);
    if (sequences.empty()) return;
    try {
      work(sequences);
    } catch (const std::exception& error) {
      log::warn("serve: {}", error.what());
      for (Sequence* sequence : sequences) {
        if (!sequence->ended) end(*sequence, FinishReason::failed, error.what());
      }
    }
  }

  LanguageModel& model;
  const EngineOptions options;
  const std::unique_ptr<KvCacheManager> store;

  // The following members are used only by the engine's thread.
  std::deque<std::shared_ptr<Sequence>> waiting;
  std::vector<std::shared_ptr<Sequence>> active;  // sequences that have memory, in the order of arrival
  std::deque<Queued> queued;                      // steps whose tokens have not been read
  size_t unread = 0;                              // number of steps in `queued` from before this iteration of run()
  std::vector<int64_t> free_slots;
  EngineMetrics counts;

  std::mutex mutex;  // protects the members below
  std::condition_variable changed;
  std::vector<std::shared_ptr<Sequence>> arrived;
  int64_t taken = 0;     // copy of waiting.size() for other threads, which must not access `waiting`
  std::deque<Job> jobs;  // queued by run_between_steps()
  std::unordered_set<Id> cancelled;
  EngineMetrics shown;
  Id last_id = 0;
  bool stopping = false, abandoned = false, idle = true;

  std::thread thread;  // declared last because the thread uses all other members
};

}  // namespace lazy
