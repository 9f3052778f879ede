// Divides a problem into units, and each unit into blocks of query rows. A unit is one kv head of one sequence. Units
// are processed in groups whose packed keys fit in a memory budget. The division depends only on the problem, not on
// the number of threads.
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

struct WorkSchedule {
  std::vector<Unit> units;  // sequences without queries or without keys have no unit
  int64_t longest_keys = 0;
  int64_t widest = 0;  // maximum number of keys (columns of scores) per row block
  int64_t rows = 0;    // number of rows per row block
  int threads = 1;
};

// strips: number of score matrices (rows x keys) that a row block needs in memory at the same time.
WorkSchedule make_schedule(const Problem& p, int strips);

// Returns the ends of the groups of units: units [ends[n-1], ends[n]) are processed together. floats(unit) returns the
// size of the packed memory that a unit needs, in floats.
template <typename Floats>
std::vector<size_t> group_ends(const WorkSchedule& schedule, const Floats& floats) {
  constexpr size_t kBudget = size_t{24} << 20;  // memory for the packed keys of a group of units, in floats (96 MiB)
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

// Returns the tables of the distance bias by signed distance (see symmetric_bias_size), one after the other for all
// heads.
std::vector<float> symmetric_bias(const Problem& p, const float* distance_bias);
HeadParameters head_parameters(const Problem& p, const std::vector<float>& bias, const float* tau, const float* sink,
                               const float* alibi_slopes, int64_t head);
// Throws std::invalid_argument if the CPU kernels do not support the problem.
void require_served(const Problem& p);

// Scratch memory of a kernel. The calling thread keeps it for its next call, because with short sequences the page
// faults of a new allocation would take as much time as the arithmetic. Huge pages are requested, because matrices of
// scores are read along their columns.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns `count` uninitialized floats, aligned to 64 bytes. Invalidates the result of the previous call.
  float* get(size_t count);
  // Returns the memory to the system if it is more than 64 MiB.
  void trim();

 private:
  void release();
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// Rounds up to whole cache lines, so that every array starts at a cache line.
inline size_t aligned_floats(size_t count) { return (count + 15) / 16 * 16; }

}  // namespace lazy::kernels::cpu
