// The ranks' writing threads agree on a checkpoint while training goes on: over the store, so that
// nothing of it comes between the collectives of the training threads.
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "train/distributed/backend.h"
#include "train/distributed/watch.h"

namespace lazy::train {

class Agreement {
 public:
  Agreement(StorePtr store, const World& world, std::chrono::milliseconds timeout, Watch& watch)
      : store_(std::move(store)), world_(world), timeout_(timeout), watch_(watch) {}

  // Every rank calls this as often, each from one thread, with what went wrong there, or "". Returns when all have: the
  // first failure that one of them passed, or "". RunError when a rank has ended, or has not come after the timeout.
  std::string agree(const std::string& failure);

 private:
  void arrive(const std::string& failure);
  std::string missing();
  std::string key(const char* what, int64_t round) const { return fmt::format("agree/{}/{}", round, what); }

  const StorePtr store_;
  const World world_;
  const std::chrono::milliseconds timeout_;
  Watch& watch_;
  int64_t round_ = 0;
};

}  // namespace lazy::train
