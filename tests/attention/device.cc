#include "device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/run_cuda.h"

namespace lazy::kernels::test {

bool on_cuda() {
  static const bool asked = [] {
    const char* device = std::getenv("LAZY_TEST_DEVICE");
    return device && std::strcmp(device, "cuda") == 0;
  }();
  return asked;
}

namespace {

class Device : public testing::Environment {
  void SetUp() override {
    if (!on_cuda() || has_gpu()) return;
    std::printf("skipped: LAZY_TEST_DEVICE=cuda, and %s\n", why_no_gpu().c_str());
    std::exit(0);  // exit before any test runs: a test that is skipped in SetUp() would count as passed
  }
};
const auto* const device = testing::AddGlobalTestEnvironment(new Device);

}  // namespace

}  // namespace lazy::kernels::test
