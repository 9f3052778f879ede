// Tests of kernel_table.h and normalizers.h: on every GPU, exactly the combinations listed in the tables are supported.
// The tests need no GPU.
#include "lazy/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "case.h"
#include "lazy/decode.h"
#include "support/error_of.h"

namespace lazy::kernels::test {

namespace {

constexpr DeviceFacts kH100{90, 227 * 1024}, kA100{80, 163 * 1024}, kA10{86, 99 * 1024}, kV100{70, 96 * 1024}, kNoGpu{};

const auto kUnlisted = static_cast<Normalizer>(std::size(kNormalizers));

Problem usual(Normalizer normalizer, int64_t head_size, DType dtype = DType::bf16) {
  Problem p;
  p.q_length = p.k_length = 128;
  p.head_dim = p.value_dim = head_size;
  p.dtype = dtype;
  p.normalizer = normalizer;
  return p;
}

Normalizer member(NormalizerFamily family) {
  for (const NormalizerTraits& t : kNormalizers) {
    if (t.family == family) return t.normalizer;
  }
  throw std::logic_error("a normalizer family has no normalizer");
}

constexpr CudaKernel kAllKernels[] = {CudaKernel::automatic, CudaKernel::plain, CudaKernel::portable,
                                      CudaKernel::hopper};

TEST(NormalizerTable, Names_AreUniqueAndParsed) {
  for (const NormalizerTraits& t : kNormalizers) {
    EXPECT_EQ(normalizer_from_name(t.name), t.normalizer);
    EXPECT_STREQ(name(t.normalizer), t.name);
  }
  EXPECT_EQ(normalizer_from_name("softmaxx"), std::nullopt);
  EXPECT_EQ(normalizer_from_name(""), std::nullopt);
  EXPECT_EQ(find_traits(kUnlisted), nullptr);
  EXPECT_THROW(traits(kUnlisted), std::invalid_argument);
}

// Regression test: a normalizer value outside of the table was treated as "not softmax-like" and computed as sparsemax.
TEST(KernelTable, UnlistedNormalizer_IsRejectedByEveryKernel) {
  const NamesMatcher names_normalizer = Names({"normalizer", static_cast<int>(kUnlisted)});
  for (const int64_t size : {64, 96, 128, 256, 80}) {
    for (const DType dtype : kKernelTypes) {
      const Problem p = usual(kUnlisted, size, dtype);
      EXPECT_THAT(unmet_condition(p), names_normalizer);
      for (const CudaKernel kernel : kAllKernels) {
        EXPECT_THAT(unmet_condition_cuda(p, kernel, kH100), names_normalizer) << name(kernel);
        EXPECT_THAT(unmet_condition_decode_cuda(p, {128, 0}, kernel), names_normalizer) << name(kernel);
      }
    }
  }
  Problem p = usual(kUnlisted, 1, DType::f32);
  p.q_length = p.k_length = 1;
  EXPECT_THROW(forward(p, Forward<float>{}), std::invalid_argument);
  EXPECT_THROW(backward(p, Backward<float>{}), std::invalid_argument);
  EXPECT_THROW(decode(p, Decode<float>{}), std::invalid_argument);
  Shape s;
  s.dtype = DType::f64;
  Inputs in = make_inputs(s, 1);
  s.normalizer = kUnlisted;
  EXPECT_ANY_THROW(run_reference(s, in));
}

TEST(KernelTable, EveryEntry_IsSupportedOnItsArchitectures) {
  for (const KernelEntry& entry : kTensorCoreKernels) {
    const std::string kernel = name(entry.kernel), needed = std::to_string(entry.min_capability / 10) + "." +
                                                            std::to_string(entry.min_capability % 10);
    for (const DType dtype : kTensorCoreTypes) {
      const Problem p = usual(member(entry.family), entry.head_size, dtype);
      EXPECT_EQ(unmet_condition_cuda(p, entry.kernel, {entry.min_capability, 227 * 1024}), "");
      EXPECT_THAT(unmet_condition_cuda(p, entry.kernel, {entry.min_capability - 1, 227 * 1024}),
                  Names({kernel, needed}));
      EXPECT_THAT(unmet_condition_cuda(p, entry.kernel, kNoGpu), Names({kernel, needed}));
    }
    EXPECT_THAT(unmet_condition_cuda(usual(member(entry.family), entry.head_size, DType::f32), entry.kernel, kH100),
                Names({kernel, "float32"}));
    EXPECT_NE(std::find(kTensorCoreHeadSizes.begin(), kTensorCoreHeadSizes.end(), entry.head_size),
              kTensorCoreHeadSizes.end());
  }
}

// Regression test: a head size was listed as supported but had no kernel instantiation, and the kernel of another head
// size was used instead.
TEST(KernelTable, UnlistedHeadSizes_AreRejected) {
  for (const CudaKernel kernel : {CudaKernel::portable, CudaKernel::hopper}) {
    for (const NormalizerTraits& t : kNormalizers) {
      for (int64_t size = 1; size <= kMaxHeadSize + 8; ++size) {
        const bool listed = find_entry(kernel, t.family, size) != nullptr;
        EXPECT_EQ(unmet_condition_cuda(usual(t.normalizer, size), kernel, kH100).empty(), listed)
            << name(kernel) << ' ' << t.name << ' ' << size;
      }
    }
  }
  Problem p = usual(Normalizer::softmax, 64);
  p.value_dim = 128;
  EXPECT_THAT(unmet_condition_cuda(p, CudaKernel::portable, kH100), Names({"portable", "softmax", 64, 128}));
  p.value_dim = 257;
  EXPECT_THAT(unmet_condition_cuda(p, CudaKernel::plain, kH100), Names({256, 257}));
}

TEST(KernelTable, Softcap_IsSupportedByPortableAndPlain) {
  for (const NormalizerTraits& t : kNormalizers) {
    Problem p = usual(t.normalizer, 64);
    p.softcap = 30;
    EXPECT_EQ(unmet_condition(p), "");
    EXPECT_EQ(unmet_condition_cuda(p, CudaKernel::plain, kH100), "");
    if (t.family != NormalizerFamily::exponential) {
      EXPECT_THAT(unmet_condition_cuda(p, CudaKernel::portable, kH100),
                  Names({"portable", "softcap", std::string(t.name), 30}));
      EXPECT_EQ(choose_cuda(p, kH100), CudaKernel::plain);
    } else {
      EXPECT_EQ(choose_cuda(p, kH100), CudaKernel::portable);
    }
    if (t.family == NormalizerFamily::exponential) {
      EXPECT_THAT(unmet_condition_cuda(p, CudaKernel::hopper, kH100),
                  Names({"hopper", "softcap", std::string(t.name), 30}));
    }
    EXPECT_EQ(unmet_condition_decode_cuda(p, {128, 0}, CudaKernel::portable), "");
  }
}

TEST(KernelTable, ChooseCuda_ReturnsFastestSupportedKernel) {
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 64), kH100), CudaKernel::hopper);
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 64), kA100), CudaKernel::portable);
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 96), kH100), CudaKernel::hopper);
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 96), kA100), CudaKernel::portable);
  EXPECT_EQ(choose_cuda(usual(Normalizer::sparsemax, 64), kH100), CudaKernel::portable);
  EXPECT_EQ(choose_cuda(usual(Normalizer::sparsemax, 96), kH100), CudaKernel::plain);
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 64), kV100), CudaKernel::plain);
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 80), kH100), CudaKernel::plain);
  // The A10 has less shared memory than the kernel for head size 256 needs.
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 256), kA100), CudaKernel::portable);
  EXPECT_EQ(choose_cuda(usual(Normalizer::elastic, 256), kA10), CudaKernel::plain);
  EXPECT_THAT(unmet_condition_cuda(usual(Normalizer::elastic, 256), CudaKernel::portable, kA10),
              Names({"portable", 256, 116}));
}

TEST(KernelTable, HeadSizeLimit_RoundsUpToAnInstantiation) {
  EXPECT_EQ(head_size_limit(1, 64), 64);
  EXPECT_EQ(head_size_limit(65, 3), 128);
  EXPECT_EQ(head_size_limit(129, 256), 256);
  EXPECT_EQ(head_size_limit(257, 1), 0);
  EXPECT_EQ(kHeadSizeLimits[std::size(kHeadSizeLimits) - 1], kMaxHeadSize);
}

}  // namespace

}  // namespace lazy::kernels::test
