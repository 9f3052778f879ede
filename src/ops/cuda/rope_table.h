// The table of cosines and sines in GPU memory.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/cuda/rows.h"

namespace lazy::ops::cuda {

// Makes a table of positions [0, positions) on the current device. Its memory stays for the life of the process: a
// kernel that is under way, or a recorded graph, may read it. Waits until the table is there, so that every stream may
// read it at once; safe while a stream records a graph. std::runtime_error when there is no memory.
RopeTable make_rope_table(const std::vector<double>& frequency, double attention_factor, int64_t positions);

}  // namespace lazy::ops::cuda
