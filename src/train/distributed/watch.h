// Notices that a rank has ended or hangs, and says which. Every rank writes a sign of life to the store, with the step
// it is at and how many waits for the others it has begun: of two ranks, the one with fewer has not arrived. A rank
// that waits too long, or hears that another failed, ends with one line on stderr, even where its main thread is
// blocked in a collective.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "train/distributed/backend.h"

namespace lazy::train {

class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  // `store`: another connection than the main thread's.
  Watch(StorePtr store, const World& world, std::chrono::milliseconds timeout);
  ~Watch();

  void at_step(int64_t step) { step_ = step; }
  // The main thread waits for the others, for `what`, a literal. Throws RunError when another rank has failed already.
  void wait_begins(const char* what);
  void wait_ends() { waiting_since_ = Clock::time_point::max(); }

  // The main thread waits for a thread of its own, which may hang where another rank has failed.
  void blocked(bool begins) { blocked_since_ = begins ? Clock::now() : Clock::time_point::max(); }

  // A collective failed: finds out which rank did it, which takes a few signs of life.
  [[noreturn]] void explain(const std::string& error);
  void announce(const std::string& failure) noexcept;
  // The first failure that is known here, empty if none. From any thread.
  std::string failure();

  // While another thread than the main one waits for the others: looks after all ranks, as in a long wait.
  class Looking {
   public:
    explicit Looking(Watch& watch) : watch_(watch) { ++watch_.looking_; }
    ~Looking() { --watch_.looking_; }

   private:
    Watch& watch_;
  };

 private:
  struct Sign {
    std::string text;         // "COUNT WAITS STEP what"
    Clock::time_point since;  // when it last changed, as seen here
  };

  void exchange_signs();
  void guard();
  void read_signs();
  // The failure that is known at this moment, empty if none. `silence`: how long a living rank may be quiet.
  std::string judge(Clock::duration silence, bool overdue);
  std::string sign_of(int rank) const { return "sign/" + std::to_string(rank); }

  const StorePtr store_;
  const World world_;
  const std::chrono::milliseconds timeout_, interval_;
  const Clock::time_point begin_ = Clock::now();
  std::atomic<int64_t> step_ = 0, waits_ = 0;
  std::atomic<const char*> what_ = "";
  std::atomic<Clock::time_point> waiting_since_ = Clock::time_point::max();
  std::atomic<Clock::time_point> blocked_since_ = Clock::time_point::max();
  std::atomic<Clock::time_point> heard_from_store_ = Clock::now();
  std::atomic<bool> suspicious_ = false;
  std::atomic<int> looking_ = 0;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool stop_ = false;
  std::map<int, Sign> signs_;
  std::string failure_;       // the first that is known here
  std::string announcement_;  // for the store
  bool announced_ = false;
  std::atomic<bool> failed_ = false;
  std::thread exchange_, guard_;
};

}  // namespace lazy::train
