#include "ops/softmax_part.h"

namespace lazy::ops {

static SoftmaxPartBackward& loaded() {
  static SoftmaxPartBackward kernel = nullptr;
  return kernel;
}

SoftmaxPartBackward softmax_part_backward() { return loaded(); }
void set_softmax_part_backward(SoftmaxPartBackward kernel) { loaded() = kernel; }

}  // namespace lazy::ops
