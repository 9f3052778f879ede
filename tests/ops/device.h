// The device of the tests: LAZY_TEST_DEVICE=cuda selects the GPU, any other value the CPU. If a GPU is selected but not
// available, all tests are skipped.
#pragma once
#include <c10/core/Device.h>

namespace lazy::ops::test {

c10::Device test_device();

}  // namespace lazy::ops::test
