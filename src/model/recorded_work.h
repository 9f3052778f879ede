// Work of a device that comes again, by key (a shape, a place in a cycle): recorded (ops/recorder.h) where that can be.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "ops/recorder.h"

namespace lazy {

// recorder.record(work); empty, with a warning that names `what`, where that fails: for memory, most likely. The caller
// goes on with `work` itself.
std::function<void()> record_or_warn(ops::Recorder& recorder, const std::function<void()>& work, std::string_view what);

template <typename Key>
class RecordedWork {
 public:
  // records: or all is queued kernel by kernel. what: for the warning.
  RecordedWork(c10::Device device, bool records, std::string what)
      : recorder_(records ? ops::make_recorder(device) : nullptr), what_(std::move(what)) {}
  // Queues `work`, which is the same for a key each time. The first time makes what is made once (handles, workspaces,
  // tables), so the second is the one that is recorded. Once recording has failed no further key is tried.
  void run(const Key& key, const std::function<void()>& work) {
    const auto [known, first] = recorded_.try_emplace(key);
    std::function<void()>& replay = known->second;
    if (!first && recorder_ && !replay) {
      replay = record_or_warn(*recorder_, work, what_);
      if (!replay) recorder_.reset();
    }
    replay ? replay() : work();
  }
  void clear() { recorded_.clear(); }

 private:
  std::unique_ptr<ops::Recorder> recorder_;  // null: nothing more is recorded
  std::string what_;
  std::map<Key, std::function<void()>> recorded_;  // empty: has run once
};

}  // namespace lazy
