// The members of the engine, for its sources: engine.cc (queue and loop), engine_scheduling.cc (which requests have
// memory) and engine_passes.cc (passes of the model and their tokens).
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "core/log.h"
#include "model/language_model.h"
#include "serve/device_steps.h"
#include "serve/engine.h"
#include "serve/sequence_store.h"

namespace lazy {

struct Engine::Impl {
  struct Sequence : std::enable_shared_from_this<Sequence> {
    explicit Sequence(const SamplingOptions& sampling) : sampler(sampling) {}

    Id id = 0;
    GenerationRequest request;
    std::shared_ptr<Receiver> receiver;
    Sampler sampler;
    TokenCounts seen;
    std::vector<int64_t> ids;                       // the prompt, then the text
    std::vector<ScoredToken> prompt;                // with prompt_logprobs
    std::unique_ptr<SequenceStore::Memory> memory;  // null: waits
    int64_t computed = 0;                           // tokens whose keys or states are in the memory, or will be
    int64_t to_read = 0;  // leading tokens of `ids` that passes over chunks compute: the prompt; after a preemption all
    int64_t prompt_read = 0;   // tokens of the prompt that were computed at least once
    bool prompt_sent = false;  // on_prompt was called
    int overtaken = 0;         // later requests that started while this one waited
    // With steps on the device:
    int64_t slot = -1;    // there
    int64_t sampled = 0;  // tokens of the text that were queued
    bool ended = false;

    int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
    int64_t size() const { return static_cast<int64_t>(ids.size()); }
    bool in_prompt() const { return computed < to_read; }
    bool wants_prompt() const { return request.prompt_logprobs && !prompt_sent; }
    // Tokens that it may still generate.
    int64_t remaining() const { return std::max<int64_t>(0, request.max_tokens - (size() - prompt_size())); }
  };

  struct Job {
    Id id;
    std::function<void(bool run)> work;
  };

  // A step of the device whose tokens have not been read.
  struct Queued {
    std::unique_ptr<DeviceSteps::Result> result;
    std::vector<std::shared_ptr<Sequence>> sequences;
  };

  Impl(LanguageModel& model, const EngineOptions& options);
  ~Impl();

  int64_t max_request_tokens() const;
  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver);
  Submission run_between_steps(std::function<void(bool)> work);
  // With the mutex held: `add` gets the id, unless the queue is full or the engine stops.
  template <typename Add>
  Submission enqueue(const Add& add);
  // Cancels what runs and waits, and refuses what comes.
  void abandon();

  // The engine's thread.
  void run();
  void wait_for_burst(std::unique_lock<std::mutex>& lock);
  // Waits for work; takes what arrived and what was cancelled. False: the end.
  bool begin_step();
  // Runs at most one job per step so that generation is not blocked. The job is dequeued when it has finished: until
  // then the engine is not idle.
  void run_job();
  void end(Sequence& s, FinishReason reason, const std::string& message = "");
  // What metrics() shows and submit() counts.
  void publish();

  // engine_scheduling.cc
  // Starts waiting requests (see "Scheduling" in engine.h).
  void admit();
  // Gives the sequence memory and makes it active, if necessary by preempting others. False: it does not fit, or
  // max_running sequences are active.
  bool start(const std::shared_ptr<Sequence>& sequence);
  // Extends the memory of each text by the next token. Texts that are preempted for others are removed from `texts`.
  void reserve(std::vector<Sequence*>& texts);
  // On the device, where the tokens of a step may not have been read: whether all tokens are sampled already.
  bool wants_no_step(const Sequence& s) const { return store->device_steps() && s.sampled >= s.request.max_tokens; }
  // Frees the memory of an active sequence, which then waits. All of its tokens have been received. The caller removes
  // it from `active`.
  void preempt(Sequence& s);

  // engine_passes.cc
  // A pass over the next chunks of prompts, in the order of arrival; after the last chunk of a prompt the first token.
  // All or none of these prompts are scored, so that the pass of one does not depend on the others.
  void read_prompts();
  // The first tokens; `last`: hidden states (1, hidden_size) of each prompt's end.
  void begin_texts(const std::vector<Sequence*>& begun, const std::vector<at::Tensor>& last);
  // As many sequences at a time as a step accepts.
  template <typename Work>
  void for_rows(const std::vector<Sequence*>& all, const Work& work);
  // Queues a token of each by `work`(rows).
  template <typename Work>
  void queue(const std::vector<Sequence*>& some, const Work& work);
  // A step for every text that wants more tokens than are queued.
  void queue_steps(std::vector<Sequence*> texts);
  // Reads the tokens of all steps but the last `left`.
  void receive(size_t left);
  // hidden: of the tokens from s.computed on.
  void score_prompt(Sequence& s, const at::Tensor& hidden);
  void continue_texts(const std::vector<Sequence*>& texts);
  // Samples the next token from `logits` and sends it.
  void accept(Sequence& s, std::span<float> logits);
  // The next token of the text.
  void take(Sequence& s, const ScoredToken& token);

  // A failure ends the requests that it concerns, and no other.
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
  const std::unique_ptr<SequenceStore> store;

  // Of the engine's thread.
  std::deque<std::shared_ptr<Sequence>> waiting;
  std::vector<std::shared_ptr<Sequence>> active;  // with memory, in the order of arrival
  std::deque<Queued> queued;                      // steps whose tokens have not been read
  size_t unread = 0;                              // those of `queued` that earlier iterations of run() have queued
  std::vector<int64_t> free_slots;
  EngineMetrics counts;

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::vector<std::shared_ptr<Sequence>> arrived;
  int64_t taken = 0;     // waiting.size() as the other threads may know it
  std::deque<Job> jobs;  // run_between_steps
  std::unordered_set<Id> cancelled;
  EngineMetrics shown;
  Id last_id = 0;
  bool stopping = false, abandoned = false, idle = true;

  std::thread thread;  // last: it uses the others
};

}  // namespace lazy
