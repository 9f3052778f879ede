// A parallel pipeline with ordered output: one reader, many workers, and one consumer that receives the results in
// input order. The result therefore does not depend on the number of threads. Memory is bounded.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lazy {

// `produce` stores the next input item in its argument and returns false at the end of the input. `bytes` returns the
// size of an item, which limits the memory of all items in the pipeline. `work` processes an item; it runs on `threads`
// threads. `consume` receives the results on the calling thread. If functions throw, the exception of the first item in
// input order is rethrown after all threads have ended. `stop` is called several times per second and may throw to
// abort.
template <typename In, typename Out>
void ordered_pipeline(const std::function<bool(In&)>& produce, const std::function<uint64_t(const In&)>& bytes,
                      const std::function<Out(In&&)>& work, const std::function<void(Out&&)>& consume,
                      const std::function<void()>& stop, int threads) {
  constexpr uint64_t kMaxBytes = 256ull << 20;
  const uint64_t max_items = 4 * static_cast<uint64_t>(threads) + 4;
  struct Outcome {
    Out value{};
    std::exception_ptr error;
    uint64_t size = 0;
  };
  std::mutex mutex;
  std::condition_variable room, waiting, finished;
  std::deque<std::pair<uint64_t, In>> pending;
  std::map<uint64_t, Outcome> done;
  uint64_t in_flight = 0, bytes_in_flight = 0, produced = 0;
  bool end_of_input = false, halt = false;

  std::vector<std::thread> workers;
  const auto join_all = [&] {
    {
      const std::lock_guard lock(mutex);
      halt = true;
    }
    room.notify_all();
    waiting.notify_all();
    for (std::thread& worker : workers) worker.join();
  };

  workers.emplace_back([&] {
    while (true) {
      {
        std::unique_lock lock(mutex);
        room.wait(lock,
                  [&] { return halt || in_flight == 0 || (in_flight < max_items && bytes_in_flight < kMaxBytes); });
        if (halt) return;
      }
      In item;
      bool more = false;
      std::exception_ptr error;
      try {
        more = produce(item);
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      if (error) done[produced++].error = error;
      if (!more) {
        end_of_input = true;
        waiting.notify_all();
        finished.notify_all();
        return;
      }
      ++in_flight;
      bytes_in_flight += bytes(item);
      pending.emplace_back(produced++, std::move(item));
      waiting.notify_one();
    }
  });
  for (int t = 0; t < std::max(1, threads); ++t) {
    workers.emplace_back([&] {
      while (true) {
        std::unique_lock lock(mutex);
        waiting.wait(lock, [&] { return halt || end_of_input || !pending.empty(); });
        if (halt || pending.empty()) return;
        auto [number, item] = std::move(pending.front());
        pending.pop_front();
        lock.unlock();
        Outcome result;
        result.size = bytes(item);
        try {
          result.value = work(std::move(item));
        } catch (...) {
          result.error = std::current_exception();
        }
        lock.lock();
        done[number] = std::move(result);
        finished.notify_all();
      }
    });
  }

  try {
    for (uint64_t next = 0;; ++next) {
      std::unique_lock lock(mutex);
      while (!done.contains(next) && !(end_of_input && next == produced)) {
        finished.wait_for(lock, std::chrono::milliseconds(200));
        lock.unlock();
        stop();
        lock.lock();
      }
      const auto found = done.find(next);
      if (found == done.end()) break;
      Outcome result = std::move(found->second);
      done.erase(found);
      lock.unlock();
      if (result.error) std::rethrow_exception(result.error);
      consume(std::move(result.value));
      lock.lock();
      --in_flight;
      bytes_in_flight -= result.size;
      room.notify_one();
    }
  } catch (...) {
    join_all();
    throw;
  }
  join_all();
}

}  // namespace lazy
