// Tests that run Python: PyTorch's opcheck, graph capture by torch.compile and gradcheck for every operator, and
// comparison with transformers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

const std::string kPython = LAZY_TEST_PYTHON;

bool imports(const std::string& modules) {
  return std::system((kPython + " -c 'import " + modules + "' >/dev/null 2>&1").c_str()) == 0;
}

// If the library is built with sanitizers, the sanitizer libraries must be loaded before it. The Python interpreter
// does not load them, so LD_PRELOAD does.
#ifdef __SANITIZE_ADDRESS__
const std::string kPreload = "LD_PRELOAD=\"$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)\" ";
#else
const std::string kPreload;
#endif

int run(const std::string& script) {
  return std::system((kPreload + kPython + " " LAZY_SOURCE_DIR "/tests/ops/" + script + " " LAZY_OPS_LIBRARY).c_str());
}

}  // namespace

TEST(PythonSlow, Operators_PassPyTorchOpcheck) {
  if (!imports("torch, numpy")) GTEST_SKIP() << kPython << " cannot import torch";
  EXPECT_EQ(run("check_operators.py"), 0);
}

TEST(PythonSlow, RopeScalings_MatchTransformers) {
  if (!imports("torch, transformers")) GTEST_SKIP() << kPython << " cannot import torch and transformers";
  EXPECT_EQ(run("check_rope.py"), 0);
}
