// Memory that a kernel needs while it runs. Kept by the thread that asked and used again by its next call, because
// fresh pages cost as much as the arithmetic at short lengths; advised to be huge pages, because the strips are walked
// down their columns.
#pragma once
#include <cstddef>

namespace lazy::kernels::cpu {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` floats, 64-byte aligned, contents unspecified. Invalidates what this object gave before.
  float* get(size_t count);
  // Returns memory beyond what is worth keeping (64 MiB) to the system.
  void trim();

 private:
  void release();
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// Rounds up so that every array begins on a cache line.
inline size_t aligned_floats(size_t count) { return (count + 15) / 16 * 16; }

}  // namespace lazy::kernels::cpu
