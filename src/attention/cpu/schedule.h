// How a problem is divided into work: units (one kv head of one sequence), groups of units whose packed keys fit the
// memory budget, row blocks within a unit. The division depends on the problem only, not on the number of threads.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "attention/cpu/block.h"

namespace lazy::kernels::cpu {

struct Unit {
  Sequence sequence;
  int64_t kv_head = 0;
  PackedKeys packed;
};

struct Schedule {
  std::vector<Unit> units;  // without the sequences that have no queries or no keys
  int64_t longest_keys = 0;
  int64_t widest = 0;  // most columns a row block has
  int64_t rows = 0;    // of a row block
  int threads = 1;
};

// strips: how many strips of scores a row block holds at once.
Schedule make_schedule(const Problem& p, int strips);

// Ends of groups: units [ends[n-1], ends[n]) are worked on together; each needs floats(unit) of packed memory.
template <typename Floats>
std::vector<size_t> group_ends(const Schedule& schedule, const Floats& floats) {
  constexpr size_t kBudget = size_t{24} << 20;  // floats: 96 MiB
  std::vector<size_t> ends;
  size_t used = 0;
  for (size_t n = 0; n < schedule.units.size(); ++n) {
    const size_t more = floats(schedule.units[n]);
    if (n > 0 && used + more > kBudget) {
      ends.push_back(n);
      used = 0;
    }
    used += more;
  }
  if (!schedule.units.empty()) ends.push_back(schedule.units.size());
  return ends;
}

// Per head, contiguous: see symmetric_bias_size.
std::vector<float> symmetric_bias(const Problem& p, const float* distance_bias);
HeadParameters head_parameters(const Problem& p, const std::vector<float>& bias, const float* tau, const float* sink,
                               const float* alibi_slopes, int64_t head);
// Throws std::invalid_argument when the problem is not served.
void require_served(const Problem& p);

// A kernel's scratch memory. The calling thread keeps it for its next call, because page faults cost as much as the
// arithmetic at short lengths. Huge pages are advised, because strips of scores are read down their columns.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` floats, 64-byte aligned, uninitialized. Invalidates the previous result.
  float* get(size_t count);
  // Returns the memory to the system if it is more than 64 MiB.
  void trim();

 private:
  void release();
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// Rounds up so that every array begins on a cache line.
inline size_t aligned_floats(size_t count) { return (count + 15) / 16 * 16; }

}  // namespace lazy::kernels::cpu
