// Detection of ranks that have ended or hang, over the rendezvous store. Every rank writes a heartbeat with its step
// and the number of collective waits it has begun; a rank with fewer waits than the others has not arrived. A rank that
// waits longer than the timeout, or learns that another rank failed, ends with one line on stderr, even if its main
// thread is blocked in a collective.
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

  // `store`: not the connection that the main thread uses.
  RankWatchdog(StorePtr store, const RankInfo& info, std::chrono::milliseconds timeout);
  ~RankWatchdog();

  void set_step(int64_t step) { step_ = step; }
  // The main thread waits for the other ranks. `what`: a string literal. Throws RunError if another rank has already
  // failed.
  void begin_wait(const char* what);
  void end_wait() { waiting_since_ = Clock::time_point::max(); }

  // The main thread waits for a thread of this process, which may hang when another rank has failed.
  void begin_join() { joining_since_ = Clock::now(); }
  void end_join() { joining_since_ = Clock::time_point::max(); }

  // After a failed collective: finds the rank that caused it, which takes a few heartbeats, and throws RunError.
  [[noreturn]] void diagnose_and_throw(const std::string& error);
  void report_failure(const std::string& failure) noexcept;
  // The first failure known to this rank, or "". Thread-safe.
  std::string failure();

  // While it exists, this rank reads all heartbeats, as in a long wait. For waits in other threads than the main one.
  class ObserveScope {
   public:
    explicit ObserveScope(RankWatchdog& watchdog) : watchdog_(watchdog) { ++watchdog_.observers_; }
    ~ObserveScope() { --watchdog_.observers_; }

   private:
    RankWatchdog& watchdog_;
  };

 private:
  struct Heartbeat {
    std::string text;         // "COUNT WAITS STEP what"
    Clock::time_point since;  // of the last change, by this rank's clock
  };

  void heartbeat_loop();
  void monitor_loop();
  void read_heartbeats();
  // A description of the current failure, or "". `silence`: the longest time between two heartbeats of a live rank.
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
  std::string failure_;   // the first one known to this rank
  std::string reported_;  // failure to write to the store
  bool report_sent_ = false;
  std::atomic<bool> failed_ = false;
  std::thread heartbeat_thread_, monitor_thread_;
};

// A barrier over the store that also carries a failure. The background threads that write checkpoints use it, because
// a collective there would interleave with those of the training thread.
class StoreBarrier {
 public:
  StoreBarrier(StorePtr store, const RankInfo& info, std::chrono::milliseconds timeout, RankWatchdog& watchdog)
      : store_(std::move(store)), info_(info), timeout_(timeout), watchdog_(watchdog) {}

  // Every rank calls this equally often, from one thread, with its failure or "". Returns the first failure passed, or
  // "", when all ranks have arrived. RunError when a rank has ended, or has not arrived after the timeout.
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
