// Decides when `lazy train` prints a permanent line with the loss on a terminal. The progress bar overwrites itself, so
// the loss values would be lost otherwise.
#pragma once
#include <algorithm>

namespace lazy::train {

class LossLines {
 public:
  // Returns whether a line is due `seconds` after the start. A line is due at the first call and then every 30 s. After
  // ten minutes a line is due whenever the elapsed time has grown by 5 %, so that the number of lines stays small in
  // long runs.
  bool due(double seconds) {
    if (seconds < next_) return false;
    next_ = seconds + std::max(30.0, 0.05 * seconds);
    return true;
  }

 private:
  double next_ = 0;
};

}  // namespace lazy::train
