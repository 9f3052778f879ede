#include "ops/rotated_attention.h"

namespace lazy::ops {

static RotatedBackward& loaded() {
  static RotatedBackward kernel = nullptr;
  return kernel;
}

RotatedBackward rotated_backward() { return loaded(); }
void set_rotated_backward(RotatedBackward kernel) { loaded() = kernel; }

}  // namespace lazy::ops
