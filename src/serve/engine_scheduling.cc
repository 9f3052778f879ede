#include <algorithm>
#include <limits>

#include "serve/engine_impl.h"

namespace lazy {

namespace {

// If this number of later requests have started while a request waited, the request may preempt any later request.
constexpr int kMaxOvertaken = 64;
// A request may preempt another request whose remaining tokens exceed this multiple of the first request's total
// length (existing plus remaining tokens). A preempted request must be recomputed, so requests of similar lengths wait
// for each other instead.
constexpr int64_t kMuchLonger = 2;

template <typename Sequences, typename Sequence>
void insert_by_id(Sequences& sequences, const Sequence& sequence) {
  const auto place =
      std::find_if(sequences.begin(), sequences.end(), [&](const auto& other) { return other->id > sequence->id; });
  sequences.insert(place, sequence);
}

// Whether `a` has priority over `b` when memory is allocated. reserve() preempts the sequence with the lowest priority,
// so the sequence with the highest priority can always finish.
template <typename Sequence>
bool comes_before(const Sequence& a, const Sequence& b) {
  return std::pair(a.remaining(), a.id) < std::pair(b.remaining(), b.id);
}

}  // namespace

void Engine::Impl::admit() {
  int64_t limit = std::numeric_limits<int64_t>::max();  // requests with at least this many remaining tokens wait
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
  // start() has already inserted the preempted sequences into `waiting`; add the requests that could not start.
  for (const auto& sequence : blocked) insert_by_id(waiting, sequence);
}

bool Engine::Impl::start(const std::shared_ptr<Sequence>& sequence) {
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
    std::vector<const KvCacheManager::Memory*> freed;
    size_t count = 0;
    do {
      if (count == victims.size()) return false;
      freed.push_back(victims[count++]->memory.get());
    } while (!store->can_admit(tokens, freed));
    receive(0);  // reading tokens may end sequences
    for (size_t n = 0; n < count; ++n) preempt(*victims[n]);
    std::erase_if(active, [](const auto& other) { return other->ended || !other->memory; });
    s.memory = store->admit(tokens);
    if (!s.memory) return false;
  }
  s.computed = 0;
  s.to_read = s.size();
  s.prompt.clear();
  if (store->decode_runner()) {
    s.slot = free_slots.back();
    free_slots.pop_back();
    s.sampled = s.size() - s.prompt_size();
  }
  insert_by_id(active, sequence);
  return true;
}

void Engine::Impl::reserve(std::vector<Sequence*>& texts) {
  for (size_t n = 0; n < texts.size(); ++n) {
    Sequence& s = *texts[n];
    while (!s.ended && s.memory && !wants_no_step(s) && !store->grow(*s.memory, s.computed + 1)) {
      if (!queued.empty()) {
        receive(0);  // receives sampled tokens; sequences that thereby end free their memory
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

void Engine::Impl::preempt(Sequence& s) {
  if (s.ended) return;
  s.memory.reset();
  if (s.slot >= 0) {
    free_slots.push_back(s.slot);
    // The counts of generated tokens were updated only on the device, so the host computes them again.
    for (auto& [id, count] : s.seen) count.text = 0;
    for (int64_t n = s.prompt_size(); n < s.size(); ++n) ++s.seen[s.ids[static_cast<size_t>(n)]].text;
  }
  s.slot = -1;
  ++counts.preemptions;
  insert_by_id(waiting, s.shared_from_this());
}

}  // namespace lazy
