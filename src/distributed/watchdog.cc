#include "distributed/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/stop.h"

namespace lazy::distributed {

using namespace std::chrono_literals;

namespace {

constexpr const char* kFailure = "failure";
// Maximum time without a heartbeat before a rank is reported as terminated or hanging. Heartbeats are sent by a thread
// that never waits for collectives, so the limit does not depend on their duration. NCCL does not report that a peer
// has ended.
constexpr auto kSilence = 30s;
constexpr auto kLongWait = 5s;

double seconds(RankWatchdog::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Formats rank numbers as "rank 3" or "ranks 3, 5 and 9". Lists at most eight ranks.
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

RankWatchdog::RankWatchdog(StorePtr store, const RankInfo& info, std::chrono::milliseconds timeout)
    : store_(std::move(store)),
      info_(info),
      timeout_(timeout),
      interval_(std::clamp<std::chrono::milliseconds>(timeout / 20, 50ms, 1000ms)) {
  heartbeat_thread_ = std::thread([this] { heartbeat_loop(); });
  monitor_thread_ = std::thread([this] { monitor_loop(); });
}

RankWatchdog::~RankWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  monitor_thread_.join();
  heartbeat_thread_.join();
}

void RankWatchdog::begin_wait(const char* what) {
  if (failed_) {
    const std::lock_guard lock(mutex_);
    throw RunError(failure_);
  }
  what_ = what;
  ++waits_;
  waiting_since_ = Clock::now();
}

void RankWatchdog::read_heartbeats() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < info_.size; ++rank) keys.push_back(heartbeat_key(rank));
  const auto texts = store_->multiGet(keys);
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < info_.size; ++rank) {
    std::string text(texts[static_cast<size_t>(rank)].begin(), texts[static_cast<size_t>(rank)].end());
    Heartbeat& heartbeat = heartbeats_[rank];
    if (heartbeat.text != text) heartbeat = {std::move(text), now};
  }
}

// Rank 0 always reads all heartbeats. The other ranks read them only during long waits, to limit the load of the store.
void RankWatchdog::heartbeat_loop() {
  int64_t count = 0;
  try {
    while (true) {
      store_->set(heartbeat_key(info_.rank),
                  fmt::format("{} {} {} {}", ++count, waits_.load(), step_.load(), what_.load()));
      if (store_->check({kFailure})) {
        const std::string text = store_->get_to_str(kFailure);
        const std::lock_guard lock(mutex_);
        failure_ = text;
        failed_ = true;
      }
      const auto since = waiting_since_.load();
      const bool long_wait = since != Clock::time_point::max() &&
                             Clock::now() - since > std::min<Clock::duration>(timeout_ / 2, kLongWait);
      if (info_.rank == 0 || diagnosing_ || observers_ > 0 || long_wait) read_heartbeats();
      store_answered_ = Clock::now();
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, interval_, [&] { return stop_ || (!report_sent_ && !reported_.empty()); });
      if (!report_sent_ && !reported_.empty()) {
        const std::string text = reported_;
        lock.unlock();
        store_->compareSet(kFailure, "", text);  // keeps the first failure that was written
        lock.lock();
        report_sent_ = true;
        changed_.notify_all();
      }
      if (stop_) return;
    }
  } catch (const std::exception&) {
    // The connection is lost. monitor_loop() detects that the store does not answer.
  }
}

std::string RankWatchdog::diagnose(Clock::duration silence, bool overdue) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  const auto now = Clock::now();
  if (const auto quiet = now - store_answered_.load(); quiet > silence) {
    return fmt::format(
        "distributed: {} at {}:{} has not answered for {:.1f} s: terminated or hanging; this rank is at step {}",
        info_.agent_store ? "torchrun, which hosts the store," : "rank 0, which hosts the store,", info_.master_address,
        info_.master_port, seconds(quiet), step_.load());
  }
  std::vector<int> silent, behind;
  std::string where;
  double quiet = 0;
  for (const auto& [rank, heartbeat] : heartbeats_) {
    if (rank == info_.rank) continue;  // an old heartbeat of this rank only means that the store is slow
    std::istringstream fields(heartbeat.text);
    int64_t count = 0, waits = 0, step = 0;
    std::string what;
    fields >> count >> waits >> step >> std::ws;
    std::getline(fields, what);
    if (now - heartbeat.since > silence) {
      silent.push_back(rank);
      quiet = std::max(quiet, seconds(now - heartbeat.since));
      where = fmt::format("step {}", step);
    } else if (waits < waits_) {
      behind.push_back(rank);
      where = fmt::format("step {}", step) + (what.empty() ? "" : ", after " + what);
    }
  }
  if (!silent.empty()) {
    return fmt::format("distributed: {} sent no heartbeat for {:.1f} s (last one at {}): terminated or hanging",
                       ranks(silent), quiet, where);
  }
  if (overdue && !behind.empty()) {
    return fmt::format("distributed: {} did not reach {} of step {} within {:.1f} s: running, but at {}", ranks(behind),
                       what_.load(), step_.load(), seconds(timeout_), where);
  }
  if (!overdue) return {};
  return fmt::format("distributed: {} of step {} did not finish within {:.1f} s although all ranks reached it",
                     what_.load(), step_.load(), seconds(timeout_));
}

void RankWatchdog::monitor_loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, 50ms, [&] { return stop_; })) return;
    }
    const auto now = Clock::now();
    const auto since = waiting_since_.load();
    const bool waiting = since != Clock::time_point::max();
    const bool overdue = waiting && now - since > timeout_;
    // A launcher that has lost a rank sends a signal to the other ranks, but a main thread that is blocked in a
    // collective cannot handle it.
    const bool asked = stop_signal() != 0 && waiting && now - since > kLongWait;
    const auto silence =
        overdue || asked ? Clock::duration(4 * interval_) : std::min<Clock::duration>(timeout_, kSilence);
    std::string failure = diagnose(silence, overdue);
    if (failure.empty()) continue;
    if (!failed_) report_failure(failure);
    const auto blocked = joining_since_.load();
    const bool stuck = blocked != Clock::time_point::max() && now - blocked >= 1s;
    // A main thread that is not waiting throws in its next call of begin_wait().
    if (!stuck && (!waiting || now - since < 1s)) continue;
    if (!stuck && diagnosing_) continue;  // the main thread is inside diagnose_and_throw()
    const std::lock_guard lock(mutex_);
    const std::string speaker = info_.rank == 0 ? "" : fmt::format("rank {}: ", info_.rank);
    std::fputs(fmt::format("lazy: {}{}\n", speaker, failure_.empty() ? failure : failure_).c_str(), stderr);
    std::fflush(stderr);
    ::_exit(1);
  }
}

void RankWatchdog::report_failure(const std::string& failure) noexcept {
  std::unique_lock lock(mutex_);
  if (failure_.empty()) failure_ = failure;
  failed_ = true;
  reported_ = failure_;
  changed_.notify_all();
  // heartbeat_loop() writes the report to the store, because that may block and the caller must not block.
  changed_.wait_for(lock, 2 * interval_, [&] { return report_sent_; });
  lock.unlock();
  // If this process hosts the store, it waits before it exits so that the other ranks can read the report.
  if (info_.rank == 0 && !info_.agent_store) std::this_thread::sleep_for(2 * interval_);
}

std::string RankWatchdog::failure() {
  if (!failed_) return {};
  const std::lock_guard lock(mutex_);
  return failure_;
}

void RankWatchdog::diagnose_and_throw(const std::string& error) {
  diagnosing_ = true;
  std::string found;
  // Running ranks send a heartbeat in each interval, so a rank without a heartbeat for five intervals is not running.
  for (const auto end = Clock::now() + 10 * interval_; found.empty() && Clock::now() < end;) {
    std::this_thread::sleep_for(interval_);
    found = diagnose(5 * interval_, false);
  }
  if (found.empty()) found = fmt::format("distributed: {} of step {} failed: {}", what_.load(), step_.load(), error);
  report_failure(found);
  const std::lock_guard lock(mutex_);
  throw RunError(failure_);
}

// The last rank that arrives sets the key "all", so that each rank polls a single key.
void StoreBarrier::arrive(const std::string& failure) {
  if (!failure.empty()) store_->compareSet(key("failure", round_), "", failure);
  store_->set(key(std::to_string(info_.rank), round_), std::string("1"));
  if (store_->add(key("count", round_), 1) == info_.size) store_->set(key("all", round_), std::string("1"));
  // All ranks have left the round before the previous one, so its keys can be deleted.
  if (round_ <= 2) return;
  store_->deleteKey(key(std::to_string(info_.rank), round_ - 2));
  if (info_.rank != 0) return;
  for (const char* what : {"failure", "count", "all"}) store_->deleteKey(key(what, round_ - 2));
}

std::string StoreBarrier::key(const std::string& what, int64_t round) const {
  return fmt::format("barrier/{}/{}", round, what);
}

std::string StoreBarrier::missing_ranks() {
  std::string out;
  for (int rank = 0; rank < info_.size; ++rank) {
    if (!store_->check({key(std::to_string(rank), round_)})) out += (out.empty() ? "" : ", ") + std::to_string(rank);
  }
  return out;
}

std::string StoreBarrier::wait(const std::string& failure) {
  ++round_;
  const RankWatchdog::ObserveScope observe(watchdog_);
  const auto end = RankWatchdog::Clock::now() + timeout_;
  try {
    arrive(failure);
    for (auto pause = 1ms; !store_->check({key("all", round_)}); pause = std::min(pause * 2, 100ms)) {
      if (const std::string known = watchdog_.failure(); !known.empty()) throw RunError(known);
      if (RankWatchdog::Clock::now() > end) {
        fail_run(
            "distributed",
            "the following ranks did not write their part of a checkpoint within {:.1f} s after the other ranks: {}",
            std::chrono::duration<double>(timeout_).count(), missing_ranks());
      }
      std::this_thread::sleep_for(pause);
    }
    return store_->check({key("failure", round_)}) ? store_->get_to_str(key("failure", round_)) : "";
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    // The store and the rank that hosts it have terminated. The watchdog reports this.
  }
  while (watchdog_.failure().empty() && RankWatchdog::Clock::now() < end + timeout_) std::this_thread::sleep_for(20ms);
  const std::string known = watchdog_.failure();
  throw RunError(known.empty() ? "distributed: the connection to the rendezvous store is lost" : known);
}

}  // namespace lazy::distributed
