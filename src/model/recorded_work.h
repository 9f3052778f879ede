// Captures repeated GPU work as CUDA graphs (ops/recorder.h), with one graph per key. A key is, for example, a shape or
// a position in a cycle.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "ops/recorder.h"

namespace lazy {

// Returns recorder.record(work). If capture fails, usually because memory is exhausted, logs a warning that names
// `what` and returns an empty function. The caller then runs `work` directly.
std::function<void()> record_or_warn(ops::Recorder& recorder, const std::function<void()>& work, std::string_view what);

template <typename Key>
class RecordedWork {
 public:
  // If `records` is false, no graphs are captured and every kernel is launched individually. `what` names the work in
  // the warning.
  RecordedWork(c10::Device device, bool records, std::string what)
      : recorder_(records ? ops::make_recorder(device) : nullptr), what_(std::move(what)) {}
  // Queues `work`, which must be the same for each call with the same key. The first call runs it directly, because it
  // may create handles, workspaces and tables. The second call captures it, and later calls replay the graph. After a
  // failed capture no other key is captured.
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
  std::unique_ptr<ops::Recorder> recorder_;  // null: capture is disabled or has failed
  std::string what_;
  std::map<Key, std::function<void()>> recorded_;  // empty function: the work has run once and is not captured
};

}  // namespace lazy
