// An engine without a model that generates given tokens. It has the interface and the threads of the real engine.
#pragma once
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/tokenizers/simple_tokenizers.h"
#include "serve/openai/served_model.h"

namespace lazy::serve::testing_support {

// Returns the log-probability that the fake engine reports for an id, at every position. Multiples of 7 have the
// highest value.
inline float fake_logprob(int64_t id) { return -0.1f - static_cast<float>(id % 7) / 3.0f; }

// Waits up to 5 s until `condition()` returns true. The condition is called while `mutex` is locked. Returns whether
// the condition became true.
inline bool wait_for(std::mutex& mutex, const std::function<bool()>& condition) {
  for (int i = 0; i < 5000; ++i) {
    {
      const std::scoped_lock lock(mutex);
      if (condition()) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

class FakeEngine final : public GenerationService {
 public:
  struct Options {
    std::chrono::microseconds step{0};
    int64_t max_waiting = 100000;
    int64_t max_request_tokens = 1000;
    // Returns the next token, or -1 for a failure. By default, the alphabet is repeated without end.
    std::function<int64_t(const GenerationRequest&, int64_t n)> next = [](const GenerationRequest&, int64_t n) {
      return 'a' + n % 26;
    };
  };
  FakeEngine() : FakeEngine(Options()) {}
  explicit FakeEngine(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}
  ~FakeEngine() override {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    thread_.join();
    for (auto& [id, job] : jobs_) job.receiver->on_end(FinishReason::cancelled, "");
  }

  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) override {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return {0, Refusal::stopping, "stopping"};
    if (static_cast<int64_t>(jobs_.size()) >= options_.max_waiting) return {0, Refusal::queue_full, "full"};
    jobs_[++last_] = {std::move(request), std::move(receiver)};
    wake_.notify_all();
    return {last_, Refusal::none, ""};
  }
  void cancel(Id id) override {
    const std::scoped_lock lock(mutex_);
    ++cancels_;
    if (const auto it = jobs_.find(id); it != jobs_.end()) it->second.cancelled = true;
  }
  int64_t max_request_tokens() const override { return options_.max_request_tokens; }
  int64_t max_waiting() const override { return options_.max_waiting; }
  EngineMetrics metrics() const override {
    const std::scoped_lock lock(mutex_);
    return {.running = static_cast<int64_t>(jobs_.size()),
            .pages = 10,
            .free_pages = 7,
            .requests = finished_,
            .generated_tokens = generated_};
  }
  void drain() override {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    idle_.wait(lock, [&] { return jobs_.empty(); });
  }

  // For tests: waits up to 5 s until `count` requests are running. Returns whether this happened.
  bool wait_for_running(size_t count) {
    return wait_for(mutex_, [&] { return jobs_.size() == count; });
  }
  int64_t cancels() const { return cancels_; }
  std::vector<GenerationRequest> seen() {
    const std::scoped_lock lock(mutex_);
    return seen_;
  }

 private:
  struct Job {
    GenerationRequest request;
    std::shared_ptr<Receiver> receiver;
    int64_t generated = 0;
    bool begun = false, cancelled = false;
  };

  static ScoredToken scored(const GenerationRequest& request, int64_t id) {
    ScoredToken out{.id = id, .logprob = NAN, .likely = {}};
    if (request.logprobs < 0) return out;
    out.logprob = fake_logprob(id);
    for (int64_t i = 0; i < request.logprobs; ++i) out.likely.emplace_back(7 * i, fake_logprob(7 * i));
    return out;
  }

  // Runs one step of one job. Returns false when the job has ended.
  bool step(Job& job) {
    const GenerationRequest& request = job.request;
    Receiver& receiver = *job.receiver;
    if (job.cancelled) {
      receiver.on_end(FinishReason::cancelled, "");
      return false;
    }
    if (!job.begun) {
      job.begun = true;
      if (request.prompt_logprobs) {
        std::vector<ScoredToken> tokens;
        for (const int64_t id : request.prompt) tokens.push_back(scored(request, id));
        tokens.front().logprob = NAN;
        tokens.front().likely.clear();
        receiver.on_prompt(tokens);
      }
    }
    if (job.generated == request.max_tokens) {
      receiver.on_end(FinishReason::length, "");
      return false;
    }
    const int64_t id = options_.next(request, job.generated);
    if (id < 0) {
      receiver.on_end(FinishReason::failed, "the scripted failure");
      return false;
    }
    ++job.generated;
    ++generated_;
    const bool stop =
        std::find(request.stop_tokens.begin(), request.stop_tokens.end(), id) != request.stop_tokens.end();
    const bool more = receiver.on_token(scored(request, id), stop);
    if (stop || !more) {
      receiver.on_end(FinishReason::stop, "");
      return false;
    }
    return true;
  }

  void run() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        idle_.notify_all();
        wake_.wait(lock, [&] { return ended_ || !jobs_.empty(); });
        if (ended_) return;
      }
      std::vector<Id> ids;
      {
        const std::scoped_lock lock(mutex_);
        for (const auto& [id, job] : jobs_) ids.push_back(id);
      }
      for (const Id id : ids) {
        Job* job;
        {
          const std::scoped_lock lock(mutex_);
          job = &jobs_.at(id);
          if (!job->begun && seen_.size() < 1000) seen_.push_back(job->request);
        }
        Job copy;  // the step uses a copy without holding the lock, because the receiver may call cancel()
        {
          const std::scoped_lock lock(mutex_);
          copy = *job;
        }
        const bool more = step(copy);
        const std::scoped_lock lock(mutex_);
        if (more) {
          job->begun = copy.begun;
          job->generated = copy.generated;
        } else {
          jobs_.erase(id);
          ++finished_;
        }
      }
      if (options_.step.count() > 0) std::this_thread::sleep_for(options_.step);
    }
  }

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::map<Id, Job> jobs_;
  std::vector<GenerationRequest> seen_;
  Id last_ = 0;
  int64_t finished_ = 0;
  std::atomic<int64_t> generated_ = 0, cancels_ = 0;
  bool stopping_ = false, ended_ = false;
  std::thread thread_;
};

// Returns a served model with the bytes tokenizer (256 is BOS, 257 is EOS).
inline ServedModel fake_model(GenerationService& engine, const std::string& id = "tiny") {
  ServedModel model;
  model.id = id;
  model.tokenizer = make_bytes_tokenizer();
  model.engine = &engine;
  model.stop_tokens = {257};
  model.vocab_size = 258;
  model.created = 1700000000;
  model.longest_piece = 1;
  return model;
}

}  // namespace lazy::serve::testing_support
