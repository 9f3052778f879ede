// Tests that the kernels listed in kernel_table.h have launchers, and that no other kernels have one. The tests need no
// GPU.
#include "attention/cuda/launchers.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace lazy::kernels::cuda {

namespace {

TEST(Launchers, Launchers_ExistExactlyForTableEntries) {
  for (const NormalizerTraits& normalizer : kNormalizers) {
    const NormalizerFamily family = normalizer.family;
    for (int size = 0; size <= 2 * kMaxHeadSize; ++size) {
      const bool portable = find_entry(CudaKernel::portable, family, size),
                 hopper = find_entry(CudaKernel::hopper, family, size);
      EXPECT_EQ(portable_forward(family, size) != nullptr, portable) << size;
      EXPECT_EQ(portable_backward(family, size) != nullptr, portable) << size;
      EXPECT_EQ(hopper_forward(family, size) != nullptr, hopper) << size;
      EXPECT_EQ(hopper_backward(family, size) != nullptr, hopper) << size;
    }
  }
  EXPECT_THROW(require(portable_forward(NormalizerFamily::exponential, 80), "the portable kernel"), std::logic_error);
}

TEST(Launchers, HeadSizes_RoundUpToAnInstantiation) {
  auto instantiation = [](int64_t dim) {
    int found = 0;
    with_head_size_limit(dim, [&](auto size) { found = size; });
    return found;
  };
  for (int64_t dim = 1; dim <= kMaxHeadSize; ++dim) EXPECT_EQ(instantiation(dim), head_size_limit(dim, dim)) << dim;
  EXPECT_THROW(instantiation(kMaxHeadSize + 1), std::logic_error);
}

TEST(Launchers, HalfType_RejectsOtherTypes) {
  const auto type_of = [](DType type) {
    bool bf16 = false;
    with_half_type<std::true_type, std::false_type>(type, [&](auto is_bf16) { bf16 = is_bf16; });
    return bf16;
  };
  EXPECT_TRUE(type_of(DType::bf16));
  EXPECT_FALSE(type_of(DType::f16));
  EXPECT_THROW(type_of(DType::f32), std::logic_error);
}

}  // namespace

}  // namespace lazy::kernels::cuda
