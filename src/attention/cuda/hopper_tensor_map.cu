// Creates TMA tensor maps. The CUDA driver function is looked up at run time, so that the library need not link against
// libcuda.
#include <cudaTypedefs.h>

#include <algorithm>
#include <stdexcept>

#include "attention/cuda/hopper.cuh"

namespace lazy::kernels::cuda {

static PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "to look up cuTensorMapEncodeTiled");
  if (!function)
    throw std::runtime_error(
        "the NVIDIA driver does not have cuTensorMapEncodeTiled; the hopper kernel requires a driver for CUDA 12 or "
        "later");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMap tensor_map(const Params& p, const Tensor& x, int heads, int tokens, int rows) {
  static const auto encode = encoder();
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(p.head_dim), static_cast<cuuint64_t>(heads),
                              static_cast<cuuint64_t>(tokens), static_cast<cuuint64_t>(p.batch)};
  // An axis with one element may have any stride, but TMA requires a positive stride.
  auto stride = [](int64_t elements) { return static_cast<cuuint64_t>(std::max<int64_t>(2 * elements, 16)); };
  const cuuint64_t strides[] = {stride(x.head), stride(x.token), stride(x.batch)};
  const cuuint32_t box[] = {64, 1, static_cast<cuuint32_t>(rows), 1}, steps[] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map, p.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             x.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled rejected a tensor (error " + std::to_string(result) + ")");
  }
  return map;
}

}  // namespace lazy::kernels::cuda
