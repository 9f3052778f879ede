// When `lazy train` prints a line with the loss on a terminal, where the progress bar overwrites itself.
#pragma once
#include <algorithm>

namespace lazy::train {

class LossLines {
 public:
  // Whether a line is due `seconds` after the start: for the first call, then every 30 s, and after ten minutes each
  // time that the run has become 5 % longer, so that the lines of a long run can still be read.
  bool due(double seconds) {
    if (seconds < next_) return false;
    next_ = seconds + std::max(30.0, 0.05 * seconds);
    return true;
  }

 private:
  double next_ = 0;
};

}  // namespace lazy::train
