// lazy::quantize_fp8 on NVIDIA GPUs.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/rows.h"
#include "ops/fused.h"
#include "ops/quantize_fp8.h"

namespace lazy::ops {

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_cuda(at::TensorList parts, at::ScalarType type, bool rows,
                                                             bool transposed) {
  check_quantize_fp8(parts, type);
  const c10::cuda::CUDAGuard guard(parts[0].device());
  int64_t width = 0;
  for (const at::Tensor& part : parts) width += part.size(1);
  const int64_t n = parts[0].size(0);
  const auto options = parts[0].options().dtype(type);
  at::Tensor q = rows ? at::empty({n, width}, options) : at::empty({0}, options);
  at::Tensor q_t = transposed ? at::empty({width, n}, options) : at::empty({0}, options);
  at::Tensor most = at::zeros({}, options.dtype(at::kFloat)), scale = at::empty_like(most);
  cuda::QuantizeFp8 a{.e5m2 = type == at::kFloat8_e5m2, .rows = n, .width = width};
  a.largest = largest_fp8(type);
  a.least_maximum = kFp8LeastMaximum;
  a.maximum = most.mutable_data_ptr<float>();
  a.scale = scale.mutable_data_ptr<float>();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  std::vector<at::Tensor> held;
  for (const at::Tensor& part : parts)
    held.push_back(part.stride(1) == 1 || part.size(1) == 1 ? part : part.contiguous());
  const auto each = [&](auto&& launch) {
    a.first = 0;
    for (const at::Tensor& x : held) {
      a.x = x.const_data_ptr();
      a.x_stride = x.stride(0);
      a.dim = x.size(1);
      launch();
      a.first += a.dim;
    }
  };
  each([&] { cuda::largest_magnitude(a, stream); });
  if (rows) a.q = q.mutable_data_ptr();
  if (transposed) a.q_transposed = q_t.mutable_data_ptr();
  each([&] { cuda::quantize_fp8(a, stream); });
  return {q, q_t, scale};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, CUDA, m) { m.impl("quantize_fp8", quantize_cuda); }

}  // namespace lazy::ops
