// Where the operators under test run: LAZY_TEST_DEVICE=cuda asks for the GPU, everything else is the CPU. Asked for a
// GPU where there is none, every test is skipped.
#pragma once
#include <c10/core/Device.h>

namespace lazy::ops::test {

c10::Device test_device();

}  // namespace lazy::ops::test
