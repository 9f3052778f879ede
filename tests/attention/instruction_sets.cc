// LAZY_TEST_INSTRUCTIONS=AVX2 (or another target name of Highway) runs these tests as if the CPU had no better
// instruction set. This also tests kernels compiled for instruction sets that would not be chosen on this CPU.
#include <hwy/targets.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const bool chosen = [] {
  const char* wanted = std::getenv("LAZY_TEST_INSTRUCTIONS");
  if (!wanted || !*wanted) return false;
  for (int64_t all = hwy::SupportedTargets(); all != 0; all &= all - 1) {
    const int64_t target = all & -all;
    if (std::strcmp(hwy::TargetName(target), wanted) != 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  std::printf("skipped: this CPU has no %s\n", wanted);
  std::exit(0);
}();

}  // namespace
