// Tests of the skinny GEMM for more than 64 rows, which uses wgmma (src/ops/cuda/skinny_gemm_hopper.cu).
#include <array>
#include <stdexcept>

#include "../skinny_gemm_case.h"

namespace lazy::kernels::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(what);
}

}  // namespace lazy::kernels::cuda

namespace lazy::ops::cuda {
namespace {

// Covers launches with and without clusters, and every tile shape. The inner dimension is divided into parts of 1 to 49
// chunks, and the kernel multiplies one, two or four chunks at a time.
TEST(SkinnyGemmHopperSlow, WgmmaGemm_MatchesSkinnyGemm) {
  const As hopper(kGpus[0]);
  for (const Product& p : {
           Product{65, 256, 40, false, false, false, true},     // clusters with one block per multiprocessor
           Product{70, 1024, 132, false, true, false, false},   // clusters with one block per multiprocessor
           Product{136, 3328, 64, false, true, false, false},   // clusters with one block per multiprocessor
           Product{70, 256, 900, false, false, false, true},    // clusters with two blocks per multiprocessor
           Product{70, 512, 1500, false, true, false, false},   // clusters with three blocks per multiprocessor
           Product{70, 256, 2500, false, true, false, false},   // no clusters, because there would be too many of them
           Product{70, 12544, 36, false, true, false, false},   // no clusters: the parts exceed the shared memory
           Product{100, 256, 68, true, false, false, true},     // tiles of 64 x 64, one chunk at a time
           Product{65, 2816, 20, true, false, true, true},      // tiles of 64 x 64, one chunk at a time
           Product{130, 512, 40, true, true, false, false},     // tiles of 64 x 64, two chunks at a time
           Product{70, 1024, 36, true, false, true, false},     // tiles of 64 x 64, four chunks at a time
           Product{70, 256, 1804, true, false, true, false},    // tiles of 128 x 64, one chunk at a time
           Product{70, 512, 1804, true, false, true, false},    // tiles of 128 x 64, two chunks at a time
           Product{70, 1024, 3600, true, false, false, true},   // tiles of 128 x 64, four chunks at a time
           Product{129, 256, 7000, false, false, false, true},  // tiles of 128 x 128, one chunk at a time
           Product{70, 512, 3600, true, false, true, false},    // tiles of 128 x 128, two chunks at a time
           Product{70, 1024, 3600, true, false, true, false},   // tiles of 128 x 128, four chunks at a time
       }) {
    compare_with_rows_by_themselves(p);
  }
}

TEST(SkinnyGemmHopperSlow, WgmmaGemmWithPageWrite_MatchesSeparateKernels) {
  const As hopper(kGpus[0]);
  for (const PagesShape& shape : {PagesShape{65, 512, 4, 2}, PagesShape{66, 1024, 2, 1}, PagesShape{136, 256, 3, 1},
                                  PagesShape{70, 256, 148, 4}, PagesShape{70, 256, 290, 4}}) {
    compare_with_rotations(shape);
  }
}

// The kernel must return false and write nothing for shapes that it does not support.
TEST(SkinnyGemmHopper, UnsupportedShapes_ReturnFalse) {
  const As hopper(kGpus[0]);
  SkinnyGemm a{.type = DType::bf16};
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{64, 256, 64}, {65, 264, 64}, {65, 256, 66}}) {
    a.rows = rows;
    a.in = in;
    a.out = out;
    EXPECT_FALSE(skinny_gemm_hopper(a, nullptr));
  }
}

}  // namespace
}  // namespace lazy::ops::cuda
