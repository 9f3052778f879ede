// Prefetching: a background thread produces a bounded number of items before the reader requests them.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace lazy {

template <typename Item>
class ReadAhead {
 public:
  using HandOver = std::function<void(Item&&)>;
  // `produce` runs on the background thread and passes each item to its argument, a HandOver function. A call of this
  // function blocks while `ahead` (at least 1) items wait for the reader. When the ReadAhead is destroyed, the call
  // throws an exception that ends `produce`.
  ReadAhead(size_t ahead, std::function<void(const HandOver&)> produce)
      : ahead_(ahead), thread_([this, produce = std::move(produce)] { run(produce); }) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Returns the next item, or nullopt at the end. If `produce` has thrown an exception, it is rethrown here after the
  // preceding items have been returned, and again in each later call.
  std::optional<Item> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !ready_.empty(); });
    if (ready_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<Item> item(std::move(ready_.front()));
    ready_.pop_front();
    changed_.notify_all();
    return item;
  }

 private:
  struct Stopped {};  // thrown to end `produce` when the ReadAhead is destroyed

  void run(const std::function<void(const HandOver&)>& produce) {
    std::exception_ptr error;
    try {
      produce([this](Item&& item) { hand_over(std::move(item)); });
    } catch (const Stopped&) {
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    ended_ = true;
    changed_.notify_all();
  }

  void hand_over(Item&& item) {
    std::unique_lock lock(mutex_);
    ready_.push_back(std::move(item));
    changed_.notify_all();
    changed_.wait(lock, [&] { return stopping_ || ready_.size() < ahead_; });
    if (stopping_) throw Stopped();
  }

  const size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> ready_;
  std::exception_ptr error_;
  bool stopping_ = false, ended_ = false;
  std::thread thread_;  // declared last because the thread uses the other members
};

}  // namespace lazy
