// From Python: torch.library.opcheck, torch.compile's graph capture and gradcheck on every operator; parity with transformers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

TEST(Python, OperatorsPassPyTorchsOwnChecks) {
  const std::string python = LAZY_TEST_PYTHON;
  if (std::system((python + " -c 'import torch, numpy' >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << python << " cannot import torch";
  }
  EXPECT_EQ(std::system((python + " " LAZY_SOURCE_DIR "/tests/ops/check_operators.py " LAZY_OPS_LIBRARY).c_str()), 0);
}

TEST(Python, RopeScalingsAreTransformers) {
  const std::string python = LAZY_TEST_PYTHON;
  if (std::system((python + " -c 'import torch, transformers' >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << python << " cannot import torch and transformers";
  }
  EXPECT_EQ(std::system((python + " " LAZY_SOURCE_DIR "/tests/ops/check_rope.py " LAZY_OPS_LIBRARY).c_str()), 0);
}
