#include "train/distributed/agreement.h"

#include <fmt/format.h>

#include <thread>

#include "core/error.h"

namespace lazy::train {
using namespace std::chrono_literals;

// The last one that arrives says so: however many ranks there are, each looks at one key.
void Agreement::arrive(const std::string& failure) {
  if (!failure.empty()) store_->compareSet(key("failure", round_), "", failure);
  store_->set(key(std::to_string(world_.rank).c_str(), round_), std::string("1"));
  if (store_->add(key("count", round_), 1) == world_.size) store_->set(key("all", round_), std::string("1"));
  // Whoever is here has left the round before last, and so has everybody else.
  if (round_ <= 2) return;
  store_->deleteKey(key(std::to_string(world_.rank).c_str(), round_ - 2));
  if (world_.rank != 0) return;
  for (const char* what : {"failure", "count", "all"}) store_->deleteKey(key(what, round_ - 2));
}

std::string Agreement::missing() {
  std::string out;
  for (int rank = 0; rank < world_.size; ++rank) {
    if (!store_->check({key(std::to_string(rank).c_str(), round_)}))
      out += (out.empty() ? "" : ", ") + std::to_string(rank);
  }
  return out;
}

std::string Agreement::agree(const std::string& failure) {
  ++round_;
  const Watch::Looking looking(watch_);
  const auto end = Watch::Clock::now() + timeout_;
  try {
    arrive(failure);
    for (auto pause = 1ms; !store_->check({key("all", round_)}); pause = std::min(pause * 2, 100ms)) {
      if (const std::string known = watch_.failure(); !known.empty()) throw RunError(known);
      if (Watch::Clock::now() > end) {
        fail_run("distributed",
                 "these ranks have not written their part of a checkpoint within {:.1f} s after the others: {}",
                 std::chrono::duration<double>(timeout_).count(), missing());
      }
      std::this_thread::sleep_for(pause);
    }
    return store_->check({key("failure", round_)}) ? store_->get_to_str(key("failure", round_)) : "";
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    // The store is gone, and with it the rank that holds it: the watch finds out and says so.
  }
  while (watch_.failure().empty() && Watch::Clock::now() < end + timeout_) std::this_thread::sleep_for(20ms);
  const std::string known = watch_.failure();
  throw RunError(known.empty() ? "distributed: no connection to the store" : known);
}

}  // namespace lazy::train
