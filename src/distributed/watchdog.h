// Detects ranks that have terminated or hang, using the rendezvous store. Every rank writes a heartbeat with its step
// and the number of collective waits that it has started. A rank that has started fewer waits than the other ranks has
// not arrived at the current collective. A rank terminates with one line on stderr if it waits longer than the timeout
// or if another rank has failed, even if its main thread is blocked in a collective.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/backends.h"

namespace lazy::distributed {

class RankWatchdog {
 public:
  using Clock = std::chrono::steady_clock;

  // `store` must not be the connection that the main thread uses.
  RankWatchdog(StorePtr store, const RankInfo& info, std::chrono::milliseconds timeout);
  ~RankWatchdog();

  void set_step(int64_t step) { step_ = step; }
  // Marks that the main thread waits for the other ranks. `what` must be a string literal. Throws RunError if another
  // rank has already failed.
  void begin_wait(const char* what);
  void end_wait() { waiting_since_ = Clock::time_point::max(); }

  // Marks that the main thread waits for another thread of this process. That thread may hang if another rank has
  // failed.
  void begin_join() { joining_since_ = Clock::now(); }
  void end_join() { joining_since_ = Clock::time_point::max(); }

  // Called after a failed collective. Finds the rank that caused the failure, which takes several heartbeat intervals,
  // and throws RunError.
  [[noreturn]] void diagnose_and_throw(const std::string& error);
  void report_failure(const std::string& failure) noexcept;
  // Returns the first failure that this rank knows, or "". Thread-safe.
  std::string failure();

  // While this object exists, this rank reads the heartbeats of all ranks, as it does during a long wait of the main
  // thread. It is used for waits in other threads.
  class ObserveScope {
   public:
    explicit ObserveScope(RankWatchdog& watchdog) : watchdog_(watchdog) { ++watchdog_.observers_; }
    ~ObserveScope() { --watchdog_.observers_; }

   private:
    RankWatchdog& watchdog_;
  };

 private:
  struct Heartbeat {
    std::string text;         // "COUNT WAITS STEP WHAT": heartbeats, waits, training step, name of the last wait
    Clock::time_point since;  // time of the last change, by the clock of this rank
  };

  void heartbeat_loop();
  void monitor_loop();
  void read_heartbeats();
  // Returns a description of the current failure, or "". `silence` is the maximum time between two heartbeats of a
  // running rank.
  std::string diagnose(Clock::duration silence, bool overdue);
  std::string heartbeat_key(int rank) const { return "heartbeat/" + std::to_string(rank); }

  const StorePtr store_;
  const RankInfo info_;
  const std::chrono::milliseconds timeout_, interval_;
  std::atomic<int64_t> step_ = 0, waits_ = 0;
  std::atomic<const char*> what_ = "";
  std::atomic<Clock::time_point> waiting_since_ = Clock::time_point::max();
  std::atomic<Clock::time_point> joining_since_ = Clock::time_point::max();
  std::atomic<Clock::time_point> store_answered_ = Clock::now();
  std::atomic<bool> diagnosing_ = false;
  std::atomic<int> observers_ = 0;

  std::mutex mutex_;  // protects the members below
  std::condition_variable changed_;
  bool stop_ = false;
  std::map<int, Heartbeat> heartbeats_;
  std::string failure_;   // the first failure that this rank knows
  std::string reported_;  // failure that must be written to the store
  bool report_sent_ = false;
  std::atomic<bool> failed_ = false;
  std::thread heartbeat_thread_, monitor_thread_;
};

// A barrier over the store that also transmits a failure. The background threads that write checkpoints use it, because
// collectives in these threads would interleave with the collectives of the training thread.
class StoreBarrier {
 public:
  StoreBarrier(StorePtr store, const RankInfo& info, std::chrono::milliseconds timeout, RankWatchdog& watchdog)
      : store_(std::move(store)), info_(info), timeout_(timeout), watchdog_(watchdog) {}

  // Every rank must call this function the same number of times, always from one thread, with its error message or "".
  // When all ranks have arrived, it returns the first error message, or "". Throws RunError if a rank has terminated or
  // has not arrived after the timeout.
  std::string wait(const std::string& failure);

 private:
  void arrive(const std::string& failure);
  std::string missing_ranks();
  std::string key(const std::string& what, int64_t round) const;

  const StorePtr store_;
  const RankInfo info_;
  const std::chrono::milliseconds timeout_;
  RankWatchdog& watchdog_;
  int64_t round_ = 0;
};

}  // namespace lazy::distributed
