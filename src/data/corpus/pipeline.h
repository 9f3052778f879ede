// One reader, many workers, and a consumer that sees the results in the order of the input: the outcome does not
// depend on the number of threads. Memory is bounded by what may be under way at once.
#pragma once
#include <algorithm>
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

// `produce` fills its argument and returns false at the end; `bytes` says how large an item is; `work` runs on
// `threads` threads at once; `consume` runs on the calling thread. The first exception, in input order, is thrown
// after all threads have ended; `stop` is asked a few times a second and ends the work by throwing.
template <typename In, typename Out>
void ordered_pipeline(const std::function<bool(In&)>& produce, const std::function<uint64_t(const In&)>& bytes,
                      const std::function<Out(In&&)>& work, const std::function<void(Out&&)>& consume,
                      const std::function<void()>& stop, int threads) {
  constexpr uint64_t kBytesUnderWay = 256ull << 20;
  const uint64_t items_under_way = 4 * static_cast<uint64_t>(threads) + 4;
  struct Result {
    Out value{};
    std::exception_ptr error;
    uint64_t size = 0;
  };
  std::mutex mutex;
  std::condition_variable room, waiting, finished;
  std::deque<std::pair<uint64_t, In>> pending;
  std::map<uint64_t, Result> done;
  uint64_t under_way = 0, bytes_under_way = 0, produced = 0;
  bool end_of_input = false, halt = false;

  std::vector<std::thread> team;
  const auto end_team = [&] {
    {
      const std::lock_guard lock(mutex);
      halt = true;
    }
    room.notify_all();
    waiting.notify_all();
    for (std::thread& member : team) member.join();
  };

  team.emplace_back([&] {
    while (true) {
      {
        std::unique_lock lock(mutex);
        room.wait(lock, [&] {
          return halt || under_way == 0 || (under_way < items_under_way && bytes_under_way < kBytesUnderWay);
        });
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
      ++under_way;
      bytes_under_way += bytes(item);
      pending.emplace_back(produced++, std::move(item));
      waiting.notify_one();
    }
  });
  for (int t = 0; t < std::max(1, threads); ++t) {
    team.emplace_back([&] {
      while (true) {
        std::unique_lock lock(mutex);
        waiting.wait(lock, [&] { return halt || end_of_input || !pending.empty(); });
        if (halt || pending.empty()) return;
        auto [number, item] = std::move(pending.front());
        pending.pop_front();
        lock.unlock();
        Result result;
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
      Result result = std::move(found->second);
      done.erase(found);
      lock.unlock();
      if (result.error) std::rethrow_exception(result.error);
      consume(std::move(result.value));
      lock.lock();
      --under_way;
      bytes_under_way -= result.size;
      room.notify_one();
    }
  } catch (...) {
    end_team();
    throw;
  }
  end_team();
}

}  // namespace lazy
