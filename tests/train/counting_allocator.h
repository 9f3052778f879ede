// Measures the memory that the tensors of a test actually use.
#pragma once
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

namespace lazy::train {

// Counts the bytes of CPU tensors that participating threads allocate. These are the thread that calls the constructor
// and threads that set takes_part. Gloo's threads do not participate: they copy data to send it, and these copies are
// not counted.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetCPUAllocator()) {
    takes_part = true;
    c10::SetCPUAllocator(this, 255);
  }
  ~CountingAllocator() override { c10::SetCPUAllocator(inner_, 255); }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    if (!takes_part) return data;
    void* const begin = data.get();
    const std::lock_guard lock(mutex_);
    live += static_cast<int64_t>(bytes);
    peak = std::max(peak, live);
    blocks_[begin] = {std::move(data), static_cast<int64_t>(bytes)};
    return {begin, begin, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
  static inline thread_local bool takes_part = false;
  static inline int64_t live = 0, peak = 0;  // peak: maximum of `live` since a test last reset it

 private:
  struct Block {
    c10::DataPtr data;
    int64_t bytes = 0;
  };
  static void release(void* begin) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(begin);
    if (found == blocks_.end()) return;  // this block was not counted
    live -= found->second.bytes;
    blocks_.erase(found);
  }
  static inline std::mutex mutex_;
  static inline std::map<void*, Block> blocks_;
  c10::Allocator* inner_;
};

}  // namespace lazy::train
