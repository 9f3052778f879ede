// Time as the trainer takes it.
#pragma once
#include <chrono>

namespace lazy::train {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace lazy::train
