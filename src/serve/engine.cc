#include "serve/engine.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.h"
#include "core/text.h"
#include "model/own_stream.h"
#include "serve/engine_impl.h"

namespace lazy {

namespace {

// Requests that arrive at almost the same time share one prefill pass. If the engine is idle and one pass can process
// several prompts, the engine delays the first request until no further request has arrived for the time kQuiet, but
// not longer than kLongestWait.
constexpr std::chrono::microseconds kQuiet{200}, kLongestWait{1000};

}  // namespace

Engine::Impl::Impl(LanguageModel& model, const EngineOptions& options)
    : model(model), options(options), store(make_kv_cache_manager(model, options)) {
  for (int64_t slot = options.max_running; store->decode_runner() && slot-- > 0;) free_slots.push_back(slot);
  if (options.rows < 1) fail("serve", "rows: expected at least 1, found {}", options.rows);
  // Shut down the caller's OpenMP threads: together with the engine's threads they would oversubscribe the cores, and
  // OpenMP would then put threads to sleep between two matrix products.
  omp_pause_resource_all(omp_pause_soft);
  thread = std::thread([this, threads = at::get_num_threads()] {
    at::set_num_threads(threads);  // the number of threads is a setting of each thread
    const OwnStream stream(this->model.device());
    run();
  });
}

Engine::Impl::~Impl() {
  abandon();
  thread.join();
}

void Engine::Impl::abandon() {
  const std::lock_guard lock(mutex);
  stopping = abandoned = true;
  changed.notify_all();
}

int64_t Engine::Impl::max_request_tokens() const {
  return std::min(store->max_tokens(), longest_request(model.config(), options));
}

Engine::Submission Engine::Impl::submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) {
  if (request.prompt.empty()) return {0, Refusal::invalid, "the prompt is empty"};
  for (const int64_t id : request.prompt) {
    if (id >= 0 && id < model.config().vocab_size) continue;
    return {
        0, Refusal::invalid,
        fmt::format("prompt: token {} is outside the model's vocabulary of {} tokens", id, model.config().vocab_size)};
  }
  try {
    request.sampling.validate("generate");
  } catch (const Error& error) {
    return {0, Refusal::invalid, error.what()};
  }
  const int64_t tokens = static_cast<int64_t>(request.prompt.size()) + std::max<int64_t>(request.max_tokens, 0);
  if (tokens > max_request_tokens()) {
    const bool cache = store->max_tokens() < longest_request(model.config(), options);
    return {0, Refusal::too_long,
            fmt::format("the request may reach {} tokens ({} prompt tokens, max_tokens {}); {} at most {}", tokens,
                        request.prompt.size(), request.max_tokens,
                        cache ? fmt::format("the KV cache of {} (--cache-gib) holds",
                                            human_bytes(static_cast<double>(options.cache_bytes)))
                              : "the context of the model allows",
                        max_request_tokens())};
  }
  auto sequence = std::make_shared<Sequence>(request.sampling);
  sequence->receiver = std::move(receiver);
  sequence->ids = request.prompt;
  for (const int64_t id : request.prompt) ++sequence->seen[id].prompt;
  sequence->request = std::move(request);
  const std::lock_guard lock(mutex);
  return enqueue([&](Id id) {
    sequence->id = id;
    arrived.push_back(std::move(sequence));
  });
}

Engine::Submission Engine::Impl::run_between_steps(std::function<void(bool)> work) {
  const std::lock_guard lock(mutex);
  return enqueue([&](Id id) { jobs.push_back({id, std::move(work)}); });
}

template <typename Add>
Engine::Submission Engine::Impl::enqueue(const Add& add) {
  if (stopping) return {0, Refusal::stopping, "the server is being stopped"};
  if (static_cast<int64_t>(arrived.size() + jobs.size()) + taken >= options.max_waiting) {
    return {0, Refusal::queue_full, fmt::format("the queue is full: {} requests are waiting", options.max_waiting)};
  }
  idle = false;
  add(++last_id);
  changed.notify_all();
  return {last_id, Refusal::none, ""};
}

void Engine::Impl::run() {
  const at::NoGradGuard guard;
  while (begin_step()) {
    run_job();
    admit();
    publish();
    if (!active.empty()) {
      unread = queued.size();
      read_prompts();
      std::vector<Sequence*> texts;
      for (const auto& sequence : active) {
        if (!sequence->ended && !sequence->in_prompt()) texts.push_back(sequence.get());
      }
      reserve(texts);
      if (store->decode_runner()) {
        // The tokens of the previous step are read while this step runs on the device.
        queue_steps(texts);
        receive(queued.size() - unread);
      } else {
        guarded(texts, [&](auto& all) { continue_texts(all); });
      }
    }
    std::erase_if(active, [](const auto& sequence) { return sequence->ended; });
    if (active.empty()) queued.clear();  // discard tokens that were sampled after the end of their sequences
    publish();
  }
}

void Engine::Impl::wait_for_burst(std::unique_lock<std::mutex>& lock) {
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  for (size_t before = 0; !stopping && before != arrived.size();) {
    before = arrived.size();
    const auto until = std::min(end, std::chrono::steady_clock::now() + kQuiet);
    changed.wait_until(lock, until, [&] { return stopping || arrived.size() != before; });
    if (until == end) break;
  }
}

bool Engine::Impl::begin_step() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] {
    return stopping || !arrived.empty() || !cancelled.empty() || !active.empty() || !waiting.empty() || !jobs.empty();
  });
  if (active.empty() && waiting.empty() && store->pass_size().parts > 1) wait_for_burst(lock);
  for (auto& sequence : arrived) waiting.push_back(std::move(sequence));
  arrived.clear();
  taken = static_cast<int64_t>(waiting.size());
  const std::unordered_set<Id> gone = std::exchange(cancelled, {});
  const bool all = abandoned;
  std::deque<Job> kept, dropped;
  for (Job& job : jobs) (all || gone.contains(job.id) ? dropped : kept).push_back(std::move(job));
  jobs = std::move(kept);
  lock.unlock();
  for (Job& job : dropped) job.work(false);
  const auto drop = [&](auto& sequences) {
    for (auto& sequence : sequences) {
      if (all || gone.contains(sequence->id)) end(*sequence, FinishReason::cancelled);
    }
    std::erase_if(sequences, [](const auto& sequence) { return sequence->ended; });
  };
  drop(waiting);
  drop(active);
  publish();
  lock.lock();
  return !(stopping && arrived.empty() && waiting.empty() && active.empty() && jobs.empty());
}

void Engine::Impl::run_job() {
  std::unique_lock lock(mutex);
  if (jobs.empty()) return;
  const std::function<void(bool)> work = std::move(jobs.front().work);
  lock.unlock();
  work(true);
  lock.lock();
  jobs.pop_front();
}

void Engine::Impl::end(Sequence& s, FinishReason reason, const std::string& message) {
  s.ended = true;
  // The pages and the slot can be freed although the device may still have queued steps of this sequence: these steps
  // run before any later step that reuses the pages or the slot.
  s.memory.reset();
  if (s.slot >= 0) free_slots.push_back(s.slot);
  s.slot = -1;
  ++counts.requests;
  s.receiver->on_end(reason, message);
}

void Engine::Impl::publish() {
  counts.running = static_cast<int64_t>(active.size());
  store->describe(counts);
  const std::lock_guard lock(mutex);
  taken = static_cast<int64_t>(waiting.size());
  counts.waiting = taken + static_cast<int64_t>(arrived.size() + jobs.size());
  shown = counts;
  idle = active.empty() && waiting.empty() && arrived.empty() && jobs.empty();
  if (idle) changed.notify_all();
}

Engine::Engine(LanguageModel& model, const EngineOptions& options) : impl_(std::make_unique<Impl>(model, options)) {}
Engine::~Engine() = default;

Engine::Submission Engine::submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) {
  return impl_->submit(std::move(request), std::move(receiver));
}

Engine::Submission Engine::run_between_steps(std::function<void(bool run)> work) {
  return impl_->run_between_steps(std::move(work));
}

void Engine::cancel(Id id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancelled.insert(id);
  impl_->changed.notify_all();
}

void Engine::abandon() { impl_->abandon(); }

int64_t Engine::max_request_tokens() const { return impl_->max_request_tokens(); }
int64_t Engine::max_waiting() const { return impl_->options.max_waiting; }
int64_t Engine::cache_tokens() const { return impl_->store->max_tokens(); }

EngineMetrics Engine::metrics() const {
  const std::lock_guard lock(impl_->mutex);
  EngineMetrics out = impl_->shown;
  return out;
}

void Engine::drain() {
  std::unique_lock lock(impl_->mutex);
  impl_->stopping = true;
  impl_->changed.notify_all();
  impl_->changed.wait(lock, [&] { return impl_->idle && impl_->arrived.empty(); });
}

}  // namespace lazy
