#include "ops/device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ops/load_cuda.h"

namespace lazy::ops::test {

c10::Device test_device() {
  static const bool cuda = [] {
    const char* device = std::getenv("LAZY_TEST_DEVICE");
    return device && std::string(device) == "cuda";
  }();
  return {cuda ? c10::kCUDA : c10::kCPU, cuda ? c10::DeviceIndex(0) : c10::DeviceIndex(-1)};
}

namespace {

class Device : public ::testing::Environment {
  void SetUp() override {
    if (!test_device().is_cuda()) return;
    try {
      load_cuda();
    } catch (const std::exception& e) {
      std::printf("skipped: LAZY_TEST_DEVICE=cuda is set, but %s\n", e.what());
      std::exit(0);  // exit before any test runs: a test that is skipped in SetUp() would count as passed
    }
  }
};
const auto* const device = ::testing::AddGlobalTestEnvironment(new Device);

}  // namespace

}  // namespace lazy::ops::test
