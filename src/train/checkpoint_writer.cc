#include "train/checkpoint_writer.h"

#include <chrono>
#include <utility>

#include "core/clock.h"

namespace lazy::train {

void CheckpointWriter::start(int64_t step, bool background, std::function<void()> write) {
  wait();
  started_ = step;
  const auto timed = [write = std::move(write)] {
    const auto begin = Clock::now();
    write();
    return seconds_since(begin);
  };
  under_way_ = std::async(background ? std::launch::async : std::launch::deferred, timed);
  if (!background) finish();
}

double CheckpointWriter::wait() {
  const auto begin = Clock::now();
  if (under_way_.valid()) finish();
  return seconds_since(begin);
}

void CheckpointWriter::check() {
  if (under_way_.valid() && under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) finish();
}

void CheckpointWriter::finish() {
  write_seconds_ = under_way_.get();
  saved_ = started_;
}

std::optional<double> CheckpointWriter::take_write_seconds() { return std::exchange(write_seconds_, std::nullopt); }

}  // namespace lazy::train
