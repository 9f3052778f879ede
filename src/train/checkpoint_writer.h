// Writes checkpoints on a thread of its own while training goes on: one at a time, and what goes wrong there comes out
// in the thread that trains.
#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <optional>

namespace lazy::train {

class CheckpointWriter {
 public:
  // Waits for the write under way, so that nothing stays half written; its error is lost here.
  ~CheckpointWriter() = default;

  // Runs `write`, which makes the checkpoint of `step` complete. In the background only when none is under way: wait()
  // first, because `write` may read what the former one reads.
  void start(int64_t step, bool background, std::function<void()> write);
  // Until nothing is under way; returns the seconds that took. Throws what the write threw.
  double wait();
  // Throws what the write threw, if it has ended. Never waits.
  void check();

  int64_t started() const { return started_; }  // step of the newest one handed over, 0: none
  int64_t saved() const { return saved_; }      // step of the newest complete one, 0: none
  void resumed_at(int64_t step) { started_ = saved_ = step; }
  // How long the last completed write took; once.
  std::optional<double> take_write_seconds();

 private:
  void finish();
  int64_t started_ = 0, saved_ = 0;
  std::optional<double> write_seconds_;
  std::future<double> under_way_;  // seconds it took; its destructor waits
};

}  // namespace lazy::train
