#include "train/distributed/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "core/error.h"
#include "core/stop.h"

namespace lazy::train {
using namespace std::chrono_literals;

namespace {

constexpr const char* kFailure = "failure";
// Signs come from a thread that nothing holds up: a rank without one for this long has ended or hangs, however long the
// collectives may take (NCCL does not notice that a rank is gone).
constexpr auto kSilence = 30s;
constexpr auto kLongWait = 5s;

double seconds(Watch::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// "rank 3", "ranks 3, 5 and 9", at most eight of them
std::string ranks(const std::vector<int>& list) {
  std::string out = list.size() == 1 ? "rank " : "ranks ";
  const size_t shown = std::min<size_t>(list.size(), 8);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) out += i + 1 == shown && shown == list.size() ? " and " : ", ";
    out += std::to_string(list[i]);
  }
  if (shown < list.size()) out += fmt::format(" and {} more", list.size() - shown);
  return out;
}

}  // namespace

Watch::Watch(StorePtr store, const World& world, std::chrono::milliseconds timeout)
    : store_(std::move(store)),
      world_(world),
      timeout_(timeout),
      interval_(std::clamp<std::chrono::milliseconds>(timeout / 20, 50ms, 1000ms)) {
  exchange_ = std::thread([this] { exchange_signs(); });
  guard_ = std::thread([this] { guard(); });
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  guard_.join();
  exchange_.join();
}

void Watch::wait_begins(const char* what) {
  if (failed_) {
    const std::lock_guard lock(mutex_);
    throw RunError(failure_);
  }
  what_ = what;
  ++waits_;
  waiting_since_ = Clock::now();
}

void Watch::read_signs() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_.size; ++rank) keys.push_back(sign_of(rank));
  const auto texts = store_->multiGet(keys);
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < world_.size; ++rank) {
    std::string text(texts[static_cast<size_t>(rank)].begin(), texts[static_cast<size_t>(rank)].end());
    Sign& sign = signs_[rank];
    if (sign.text != text) sign = {std::move(text), now};
  }
}

// Rank 0 looks at all signs all the time, the others when they wait for long: the store is one process.
void Watch::exchange_signs() {
  int64_t count = 0;
  try {
    while (true) {
      store_->set(sign_of(world_.rank), fmt::format("{} {} {} {}", ++count, waits_.load(), step_.load(), what_.load()));
      if (store_->check({kFailure})) {
        const std::string text = store_->get_to_str(kFailure);
        const std::lock_guard lock(mutex_);
        failure_ = text;
        failed_ = true;
      }
      const auto since = waiting_since_.load();
      const bool long_wait = since != Clock::time_point::max() &&
                             Clock::now() - since > std::min<Clock::duration>(timeout_ / 2, kLongWait);
      if (world_.rank == 0 || suspicious_ || looking_ > 0 || long_wait) read_signs();
      heard_from_store_ = Clock::now();
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, interval_, [&] { return stop_ || (!announced_ && !announcement_.empty()); });
      if (!announced_ && !announcement_.empty()) {
        const std::string text = announcement_;
        lock.unlock();
        store_->compareSet(kFailure, "", text);  // the first one stays
        lock.lock();
        announced_ = true;
        changed_.notify_all();
      }
      if (stop_) return;
    }
  } catch (const std::exception&) {
    // The store is gone: guard() sees that nothing is heard from it any more.
  }
}

std::string Watch::judge(Clock::duration silence, bool overdue) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  const auto now = Clock::now();
  if (const auto quiet = now - heard_from_store_.load(); quiet > silence) {
    return fmt::format("distributed: {} at {}:{}, has not answered for {:.1f} s: ended or hanging; this is step {}",
                       world_.agent_store ? "torchrun, which holds the store" : "rank 0, which holds the store",
                       world_.address, world_.port, seconds(quiet), step_.load());
  }
  std::vector<int> silent, behind;
  std::string where;
  double quiet = 0;
  for (const auto& [rank, sign] : signs_) {
    if (rank == world_.rank) continue;  // it is we who look: an old sign of ours only says that the store is slow
    std::istringstream fields(sign.text);
    int64_t count = 0, waits = 0, step = 0;
    std::string what;
    fields >> count >> waits >> step >> std::ws;
    std::getline(fields, what);
    if (now - sign.since > silence) {
      silent.push_back(rank);
      quiet = std::max(quiet, seconds(now - sign.since));
      where = fmt::format("step {}", step);
    } else if (waits < waits_) {
      behind.push_back(rank);
      where = fmt::format("step {}", step) + (what.empty() ? "" : ", after " + what);
    }
  }
  if (!silent.empty()) {
    return fmt::format("distributed: {} gave no sign of life for {:.1f} s (last one at {}): ended or hanging",
                       ranks(silent), quiet, where);
  }
  if (overdue && !behind.empty()) {
    return fmt::format("distributed: {} did not come to {} of step {} within {:.1f} s: alive, but at {}", ranks(behind),
                       what_.load(), step_.load(), seconds(timeout_), where);
  }
  if (!overdue) return {};
  return fmt::format("distributed: {} of step {} did not end within {:.1f} s although all ranks came", what_.load(),
                     step_.load(), seconds(timeout_));
}

void Watch::guard() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, 50ms, [&] { return stop_; })) return;
    }
    const auto now = Clock::now();
    const auto since = waiting_since_.load();
    const bool waiting = since != Clock::time_point::max();
    const bool overdue = waiting && now - since > timeout_;
    // A launcher that has lost a rank asks the others to stop, and one that is blocked cannot.
    const bool asked = stop_signal() != 0 && waiting && now - since > kLongWait;
    const auto silence =
        overdue || asked ? Clock::duration(4 * interval_) : std::min<Clock::duration>(timeout_, kSilence);
    std::string failure = judge(silence, overdue);
    if (failure.empty()) continue;
    if (!failed_) announce(failure);
    const auto blocked = blocked_since_.load();
    const bool stuck = blocked != Clock::time_point::max() && now - blocked >= 1s;
    // A main thread that does not wait comes to its next wait and ends there, after what it is doing.
    if (!stuck && (!waiting || now - since < 1s)) continue;
    if (!stuck && suspicious_) continue;  // it is in explain()
    const std::lock_guard lock(mutex_);
    const std::string speaker = world_.rank == 0 ? "" : fmt::format("rank {}: ", world_.rank);
    std::fputs(fmt::format("lazy: {}{}\n", speaker, failure_.empty() ? failure : failure_).c_str(), stderr);
    std::fflush(stderr);
    ::_exit(1);
  }
}

void Watch::announce(const std::string& failure) noexcept {
  std::unique_lock lock(mutex_);
  if (failure_.empty()) failure_ = failure;
  failed_ = true;
  announcement_ = failure_;
  changed_.notify_all();
  // exchange_signs() tells the store, which may hang: whoever calls must not.
  changed_.wait_for(lock, 2 * interval_, [&] { return announced_; });
  lock.unlock();
  // The others read it while the store lives.
  if (world_.rank == 0 && !world_.agent_store) std::this_thread::sleep_for(2 * interval_);
}

std::string Watch::failure() {
  if (!failed_) return {};
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Watch::explain(const std::string& error) {
  suspicious_ = true;
  std::string found;
  // Signs are compared over some time: whoever is alive gives one each interval.
  for (const auto end = Clock::now() + 10 * interval_; found.empty() && Clock::now() < end;) {
    std::this_thread::sleep_for(interval_);
    found = judge(5 * interval_, false);
  }
  if (found.empty()) found = fmt::format("distributed: {} of step {} failed: {}", what_.load(), step_.load(), error);
  announce(found);
  const std::lock_guard lock(mutex_);
  throw RunError(failure_);
}

}  // namespace lazy::train
