#include "serve/engine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "core/error.h"
#include "core/log.h"
#include "model/own_stream.h"
#include "ops/rows.h"
#include "serve/device_steps.h"
#include "serve/sequence_store.h"

namespace lazy {

namespace {

constexpr int64_t kHeadRows = 64;  // of a prompt, whose logits are in memory at once

// A request that so many later ones have overtaken may preempt them.
constexpr int kMaxOvertaken = 64;
// A request may preempt one that may still generate so many times the tokens that it has in all. What is preempted is
// computed again, so requests of similar lengths wait for each other instead.
constexpr int64_t kMuchLonger = 2;

// Requests that come together share a pass: where nothing runs and a pass takes many prompts, the first one waits until
// no other has come for kQuiet, kLongestWait at most.
constexpr std::chrono::microseconds kQuiet{200}, kLongestWait{1000};

// While it lives, small models decode on one thread. A token's matrix products take microseconds each, so that
// synchronizing a second thread costs as much as it saves, and far more on a busy machine.
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

// How the n-th token of a text is drawn on the device.
ops::SampleRow sample_row(const SamplingOptions& o, int64_t n) {
  return {.temperature = static_cast<float>(o.temperature),
          .top_k = o.top_k,
          .top_p = static_cast<float>(o.top_p),
          .min_p = static_cast<float>(o.min_p),
          .seed = o.seed,
          .draw = n,
          .adjusted =
              o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0 || !o.logit_bias.empty(),
          .repetition_penalty = static_cast<float>(o.repetition_penalty),
          .presence_penalty = static_cast<float>(o.presence_penalty),
          .frequency_penalty = static_cast<float>(o.frequency_penalty)};
}

struct Sequence : std::enable_shared_from_this<Sequence> {
  explicit Sequence(const SamplingOptions& sampling) : sampler(sampling) {}

  Engine::Id id = 0;
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
  Engine::Id id;
  std::function<void(bool run)> work;
};

// A step of the device whose tokens have not been read.
struct Queued {
  std::unique_ptr<DeviceSteps::Result> result;
  std::vector<std::shared_ptr<Sequence>> sequences;
};

// `logits` of one place; the token there is `id`.
ScoredToken score(std::span<float> logits, int64_t id, int likely) {
  const auto logit = [&](int64_t token) { return logits[static_cast<size_t>(token)]; };
  const float lse =
      logit(id) - ops::rows::cross_entropy(logits.data(), static_cast<int64_t>(logits.size()), id, 0).log_prob;
  ScoredToken out{.id = id, .logprob = logit(id) - lse};
  const auto likelier = [&](int64_t a, int64_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  std::vector<int64_t> best;  // a heap: the least likely first
  const size_t kept = std::min(logits.size(), static_cast<size_t>(std::max(likely, 0)));
  for (int64_t token = 0; kept > 0 && token < static_cast<int64_t>(logits.size()); ++token) {
    if (best.size() == kept) {
      if (!likelier(token, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), likelier);
      best.pop_back();
    }
    best.push_back(token);
    std::push_heap(best.begin(), best.end(), likelier);
  }
  std::sort_heap(best.begin(), best.end(), likelier);
  for (const int64_t token : best) out.likely.emplace_back(token, logit(token) - lse);
  return out;
}

std::span<float> row(const at::Tensor& logits, int64_t n) {
  const auto size = static_cast<size_t>(logits.size(-1));
  return {logits.mutable_data_ptr<float>() + n * logits.size(-1), size};
}

}  // namespace

struct Engine::Impl {
  Impl(LanguageModel& model, const EngineOptions& options)
      : model(model), options(options), store(make_sequence_store(model, options)) {
    for (int64_t slot = options.max_running; store->device_steps() && slot-- > 0;) free_slots.push_back(slot);
    if (options.rows < 1) fail("serve", "rows: expected at least 1, found {}", options.rows);
    // The caller's OpenMP threads end: beside the engine's they would be more than there are cores, and then OpenMP
    // puts threads to sleep between two products.
    omp_pause_resource_all(omp_pause_soft);
    thread = std::thread([this, threads = at::get_num_threads()] {
      at::set_num_threads(threads);  // of this thread
      const OwnStream stream(this->model.device());
      run();
    });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = abandoned = true;
    }
    changed.notify_all();
    thread.join();
  }

  int64_t max_request_tokens() const { return std::min(store->max_tokens(), longest_request(model.config(), options)); }

  Submission submit(GenerationRequest request, std::shared_ptr<Receiver> receiver) {
    if (request.prompt.empty()) return {0, Refusal::invalid, "the prompt is empty"};
    for (const int64_t id : request.prompt) {
      if (id >= 0 && id < model.config().vocab_size) continue;
      return {0, Refusal::invalid,
              fmt::format("prompt: token {} is outside the model's vocabulary of {}", id, model.config().vocab_size)};
    }
    try {
      request.sampling.validate();
    } catch (const Error& error) {
      return {0, Refusal::invalid, error.what()};
    }
    const int64_t tokens = static_cast<int64_t>(request.prompt.size()) + std::max<int64_t>(request.max_tokens, 0);
    if (tokens > max_request_tokens()) {
      return {0, Refusal::too_long,
              fmt::format("the request may reach {} tokens ({} of the prompt, {} of max_tokens); the limit is {}",
                          tokens, request.prompt.size(), request.max_tokens, max_request_tokens())};
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

  Submission run_between_steps(std::function<void(bool)> work) {
    const std::lock_guard lock(mutex);
    return enqueue([&](Id id) { jobs.push_back({id, std::move(work)}); });
  }

  // With the mutex held: `add` gets the id, unless there is no room.
  template <typename Add>
  Submission enqueue(const Add& add) {
    if (stopping) return {0, Refusal::stopping, "the server is being stopped"};
    if (static_cast<int64_t>(arrived.size() + jobs.size()) + taken >= options.max_waiting) {
      return {0, Refusal::queue_full, fmt::format("{} requests wait already", options.max_waiting)};
    }
    idle = false;
    add(++last_id);
    changed.notify_all();
    return {last_id, Refusal::none, ""};
  }

  // The engine's thread.
  void run() {
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
        if (store->device_steps()) {
          // The last step's tokens are read while this one runs.
          queue_steps(texts);
          receive(queued.size() - unread);
        } else {
          guarded(texts, [&](auto& all) { continue_texts(all); });
        }
      }
      std::erase_if(active, [](const auto& sequence) { return sequence->ended; });
      if (active.empty()) queued.clear();  // surplus tokens
      publish();
    }
  }

  void wait_for_burst(std::unique_lock<std::mutex>& lock) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    for (size_t before = 0; !stopping && before != arrived.size();) {
      before = arrived.size();
      const auto until = std::min(end, std::chrono::steady_clock::now() + kQuiet);
      changed.wait_until(lock, until, [&] { return stopping || arrived.size() != before; });
      if (until == end) break;
    }
  }

  // Waits for work; takes what arrived and what was cancelled. False: the end.
  bool begin_step() {
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

  // One a step, so that texts go on. It leaves the queue when it is done: until then the engine is not idle.
  void run_job() {
    std::unique_lock lock(mutex);
    if (jobs.empty()) return;
    const std::function<void(bool)> work = std::move(jobs.front().work);
    lock.unlock();
    work(true);
    lock.lock();
    jobs.pop_front();
  }

  // Starts waiting requests (see "Scheduling" in engine.h).
  void admit() {
    int64_t limit = std::numeric_limits<int64_t>::max();  // only requests with fewer remaining tokens may start
    std::vector<std::shared_ptr<Sequence>> started, blocked;
    const std::deque<std::shared_ptr<Sequence>> candidates = std::exchange(waiting, {});
    for (const std::shared_ptr<Sequence>& candidate : candidates) {
      Sequence& s = *candidate;
      if (s.request.max_tokens <= 0 && !s.request.prompt_logprobs) {
        end(s, FinishReason::length);
      } else if (limit > s.remaining() && start(candidate)) {
        for (const auto& earlier : blocked) ++earlier->overtaken;
      } else {
        limit = std::min(limit, s.remaining());
        blocked.push_back(candidate);
      }
    }
    for (const auto& sequence : blocked) insert_by_id(waiting, sequence);  // `waiting` has those that were preempted
  }

  template <typename Sequences>
  static void insert_by_id(Sequences& sequences, const std::shared_ptr<Sequence>& sequence) {
    const auto place =
        std::find_if(sequences.begin(), sequences.end(), [&](const auto& other) { return other->id > sequence->id; });
    sequences.insert(place, sequence);
  }

  // Gives the sequence memory and makes it active, if necessary by preempting others. False: it does not fit, or
  // max_running sequences are active.
  bool start(const std::shared_ptr<Sequence>& sequence) {
    Sequence& s = *sequence;
    const int64_t tokens = s.size() + std::min<int64_t>(s.remaining(), 1), all = s.size() + s.remaining();
    if (static_cast<int64_t>(active.size()) >= options.max_running) return false;
    s.memory = store->admit(tokens);
    if (!s.memory) {
      std::vector<Sequence*> victims;
      for (const auto& other : active) {
        const bool overtook = s.overtaken >= kMaxOvertaken && other->id > s.id;
        if (!other->ended && (other->remaining() > kMuchLonger * all || overtook)) victims.push_back(other.get());
      }
      std::ranges::sort(victims, [](const Sequence* a, const Sequence* b) { return comes_before(*b, *a); });
      std::vector<const SequenceStore::Memory*> freed;
      size_t count = 0;
      do {
        if (count == victims.size()) return false;
        freed.push_back(victims[count++]->memory.get());
      } while (!store->can_admit(tokens, freed));
      receive(0);  // may end sequences
      for (size_t n = 0; n < count; ++n) preempt(*victims[n]);
      std::erase_if(active, [](const auto& other) { return other->ended || !other->memory; });
      s.memory = store->admit(tokens);
      if (!s.memory) return false;
    }
    s.computed = 0;
    s.to_read = s.size();
    s.prompt.clear();
    if (store->device_steps()) {
      s.slot = free_slots.back();
      free_slots.pop_back();
      s.sampled = s.size() - s.prompt_size();
    }
    insert_by_id(active, sequence);
    return true;
  }

  // Extends the memory of each text by the next token. Texts that are preempted for others are removed from `texts`.
  void reserve(std::vector<Sequence*>& texts) {
    for (size_t n = 0; n < texts.size(); ++n) {
      Sequence& s = *texts[n];
      while (!s.ended && s.memory && !wants_no_step(s) && !store->grow(*s.memory, s.computed + 1)) {
        if (!queued.empty()) {
          receive(0);  // may end sequences
          continue;
        }
        Sequence* victim = nullptr;
        for (const auto& other : active) {
          if (!other->ended && other->memory && (!victim || comes_before(*victim, *other))) victim = other.get();
        }
        preempt(*victim);
      }
    }
    std::erase_if(texts, [](const Sequence* s) { return s->ended || !s->memory; });
    std::erase_if(active, [](const auto& sequence) { return !sequence->ended && !sequence->memory; });
  }

  // On the device, where the tokens of a step may not have been read: whether all tokens are sampled already.
  bool wants_no_step(const Sequence& s) const { return store->device_steps() && s.sampled >= s.request.max_tokens; }

  // Whether `a` keeps its memory rather than `b`. The first in this order is never preempted, so it ends.
  static bool comes_before(const Sequence& a, const Sequence& b) {
    return std::pair(a.remaining(), a.id) < std::pair(b.remaining(), b.id);
  }

  // Frees the memory of an active sequence, which then waits. All of its tokens have been received. The caller removes
  // it from `active`.
  void preempt(Sequence& s) {
    if (s.ended) return;
    s.memory.reset();
    if (s.slot >= 0) {
      free_slots.push_back(s.slot);
      // The device counted the text's tokens.
      for (auto& [id, count] : s.seen) count.text = 0;
      for (int64_t n = s.prompt_size(); n < s.size(); ++n) ++s.seen[s.ids[static_cast<size_t>(n)]].text;
    }
    s.slot = -1;
    ++counts.preemptions;
    insert_by_id(waiting, s.shared_from_this());
  }

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

  // A pass over the next chunks of prompts, in the order of arrival; behind a prompt's last one the first token. All or
  // none of these prompts are scored, so that the pass of one does not depend on the others.
  void read_prompts() {
    const SequenceStore::PassSize most = store->pass_size();
    std::vector<Sequence*> readers, owners;  // owners: of the parts
    std::vector<SequenceStore::Part> parts;
    int64_t room = most.tokens, ends = 0;
    bool scored = false;
    for (const auto& sequence : active) {
      Sequence& s = *sequence;
      if (s.ended || !s.in_prompt()) continue;
      if (readers.empty()) scored = s.wants_prompt();
      if (room == 0 || parts.size() >= most.parts || ends == most.ends || s.wants_prompt() != scored) break;
      readers.push_back(&s);
      const std::span<const int64_t> prompt = std::span(s.ids).first(static_cast<size_t>(s.to_read));
      if (!scored) {
        const int64_t reused = store->reuse(*s.memory, prompt, s.computed);
        s.computed += reused;
        counts.reused_tokens += reused;
      }
      for (int64_t at = s.computed; at < s.to_read && parts.size() < most.parts; at += options.chunk) {
        const int64_t count = std::min(options.chunk, s.to_read - at);
        if (count > room) {
          room = 0;
          break;
        }
        parts.push_back({s.memory.get(), prompt, at});
        owners.push_back(&s);
        room -= count;
        ends += at + count == s.to_read;
      }
    }
    guarded(readers, [&](auto&) {
      if (parts.empty()) return;
      const std::vector<SequenceStore::Extended> extended = store->extend(parts, /*last_tokens_only=*/!scored);
      std::vector<Sequence*> begun;
      std::vector<at::Tensor> last;
      for (size_t n = 0; n < parts.size(); ++n) {
        Sequence& s = *owners[n];
        const auto& [tokens, hidden] = extended[n];
        if (scored) score_prompt(s, hidden);
        s.computed += tokens;
        const int64_t read = std::min(s.computed, s.prompt_size());
        counts.prompt_tokens += std::max<int64_t>(0, read - std::max(s.prompt_read, s.computed - tokens));
        s.prompt_read = std::max(s.prompt_read, read);
        if (s.in_prompt()) continue;
        if (scored) s.receiver->on_prompt(s.prompt);
        s.prompt_sent = scored || s.prompt_sent;
        if (s.request.max_tokens <= 0) {
          end(s, FinishReason::length);
          continue;
        }
        if (s.slot >= 0 && sample_row(s.request.sampling, 0).adjusted) {
          guarded({&s}, [&](auto&) { store->device_steps()->begin_adjusted(s.slot, s.seen, s.request.sampling); });
          if (s.ended) continue;
        }
        begun.push_back(&s);
        last.push_back(hidden.narrow(0, hidden.size(0) - 1, 1));
      }
      begin_texts(begun, last);
    });
  }

  // The first tokens; `last`: hidden states (1, hidden_size) of each prompt's end.
  void begin_texts(const std::vector<Sequence*>& begun, const std::vector<at::Tensor>& last) {
    if (DeviceSteps* device = store->device_steps()) {
      for_rows(begun, [&](const std::vector<Sequence*>& some, size_t first) {
        const at::Tensor hidden = at::cat(at::TensorList(last).slice(first, some.size()));
        queue(some, [&](const auto& rows) { return device->begin(hidden, rows); });
      });
      return;
    }
    for (size_t n = 0; n < begun.size(); ++n) {
      const at::Tensor logits = model.logits(last[n]).to(at::kCPU).contiguous();
      accept(*begun[n], row(logits, 0));
    }
  }

  // As many sequences at a time as a step takes.
  template <typename Work>
  void for_rows(const std::vector<Sequence*>& all, const Work& work) {
    const auto most = static_cast<size_t>(store->device_steps()->most_rows());
    for (size_t first = 0; first < all.size(); first += most) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      work(std::vector<Sequence*>(begin, begin + static_cast<std::ptrdiff_t>(std::min(most, all.size() - first))),
           first);
    }
  }

  // Queues a token of each by `work`(rows).
  template <typename Work>
  void queue(const std::vector<Sequence*>& some, const Work& work) {
    guarded(some, [&](auto& all) {
      std::vector<DeviceSteps::Row> rows;
      for (const Sequence* s : all) {
        rows.push_back({store->pages(*s->memory), s->computed, s->slot, sample_row(s->request.sampling, s->sampled),
                        s->request.logprobs});
      }
      Queued step{work(rows), {}};
      for (Sequence* s : all) {
        ++s->sampled;
        step.sequences.push_back(s->shared_from_this());
      }
      queued.push_back(std::move(step));
    });
  }

  // A step for every text that wants more tokens than are queued.
  void queue_steps(std::vector<Sequence*> texts) {
    const DecodeThreads threads(model);
    std::erase_if(texts, [](const Sequence* s) { return s->sampled >= s->request.max_tokens; });
    for_rows(texts, [&](const std::vector<Sequence*>& some, size_t) {
      queue(some, [&](const auto& rows) { return store->device_steps()->step(rows); });
      for (Sequence* s : some) ++s->computed;
    });
  }

  // Reads the tokens of all steps but the last `left`.
  void receive(size_t left) {
    while (queued.size() > left) {
      Queued step = std::move(queued.front());
      queued.pop_front();
      unread -= unread > 0 ? 1 : 0;
      for (size_t n = 0; n < step.sequences.size(); ++n) {
        Sequence& s = *step.sequences[n];
        if (s.ended) continue;
        guarded({&s}, [&](auto&) {
          const ScoredToken token = step.result->token(n);
          if (token.id < 0) fail_run("generate", "the model's logits are not numbers: its weights have diverged");
          take(s, token);
        });
      }
    }
  }

  // hidden: of the tokens from s.computed on.
  void score_prompt(Sequence& s, const at::Tensor& hidden) {
    const int likely = std::max(s.request.logprobs, 0);
    if (s.computed == 0) {
      s.prompt.push_back({.id = s.ids.front(), .logprob = std::numeric_limits<float>::quiet_NaN(), .likely = {}});
    }
    const int64_t count = std::min(hidden.size(0), s.prompt_size() - 1 - s.computed);  // with a token behind them
    for (int64_t begin = 0; begin < count; begin += kHeadRows) {
      const at::Tensor logits =
          model.logits(hidden.narrow(0, begin, std::min(kHeadRows, count - begin))).to(at::kCPU).contiguous();
      const auto first = static_cast<int64_t>(s.prompt.size());
      s.prompt.resize(static_cast<size_t>(first + logits.size(0)));
      at::parallel_for(0, logits.size(0), 1, [&](int64_t from, int64_t to) {
        for (int64_t n = from; n < to; ++n) {
          const int64_t id = s.ids[static_cast<size_t>(s.computed + begin + n + 1)];
          s.prompt[static_cast<size_t>(first + n)] = score(row(logits, n), id, likely);
        }
      });
    }
  }

  void continue_texts(const std::vector<Sequence*>& texts) {
    const DecodeThreads threads(model);
    std::vector<SequenceStore::Step> steps;
    for (Sequence* s : texts) steps.push_back({s->memory.get(), s->ids});
    const at::Tensor logits = store->step(steps).to(at::kCPU).contiguous();
    for (size_t n = 0; n < texts.size(); ++n) {
      ++texts[n]->computed;
      guarded({texts[n]}, [&](auto& some) { accept(*some.front(), row(logits, static_cast<int64_t>(n))); });
    }
  }

  // Samples the next token from `logits` and sends it.
  void accept(Sequence& s, std::span<float> logits) {
    const int64_t id = s.sampler.sample(logits, s.seen);
    ++s.seen[id].text;
    take(s, s.request.logprobs < 0
                ? ScoredToken{.id = id, .logprob = std::numeric_limits<float>::quiet_NaN(), .likely = {}}
                : score(logits, id, s.request.logprobs));
  }

  // The next token of the text.
  void take(Sequence& s, const ScoredToken& token) {
    s.ids.push_back(token.id);
    ++counts.generated_tokens;
    const std::vector<int64_t>& stops = s.request.stop_tokens;
    const bool stop = std::find(stops.begin(), stops.end(), token.id) != stops.end();
    if (!s.receiver->on_token(token, stop) || stop) return end(s, FinishReason::stop);
    if (static_cast<int64_t>(s.ids.size()) - s.prompt_size() >= s.request.max_tokens) end(s, FinishReason::length);
  }

  void end(Sequence& s, FinishReason reason, const std::string& message = "") {
    s.ended = true;
    // What is queued for it comes, on the device, before whatever gets the pages or the slot next.
    s.memory.reset();
    if (s.slot >= 0) free_slots.push_back(s.slot);
    s.slot = -1;
    ++counts.requests;
    s.receiver->on_end(reason, message);
  }

  // What metrics() shows and submit() counts.
  void publish() {
    counts.running = static_cast<int64_t>(active.size());
    store->describe(counts);
    const std::lock_guard lock(mutex);
    taken = static_cast<int64_t>(waiting.size());
    counts.waiting = taken + static_cast<int64_t>(arrived.size() + jobs.size());
    shown = counts;
    idle = active.empty() && waiting.empty() && arrived.empty() && jobs.empty();
    if (idle) changed.notify_all();
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

int64_t Engine::max_request_tokens() const { return impl_->max_request_tokens(); }

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
