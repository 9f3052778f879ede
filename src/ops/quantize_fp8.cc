#include "ops/quantize_fp8.h"

#include "ops/autograd.h"
#include "ops/fused.h"

namespace lazy::ops {

void check_quantize_fp8(at::TensorList parts, at::ScalarType type) {
  constexpr const char* kName = "quantize_fp8";
  LAZY_CHECK(kName, type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2, "float8_e4m3fn or float8_e5m2, received ",
             type);
  const at::Tensor& first = parts[0];
  for (const at::Tensor& part : parts) {
    LAZY_CHECK(kName, part.dim() == 2 && part.sym_size(0) == first.sym_size(0),
               "matrices with as many rows as the first one, ", first.sym_sizes(), ", received ", part.sym_sizes());
    LAZY_CHECK(kName, part.scalar_type() == at::kBFloat16 || (!part.is_cuda() && part.scalar_type() == at::kFloat),
               part.is_cuda() ? "bfloat16" : "bfloat16 or float32", ", received ", part.scalar_type());
    check_device(kName, "all matrices", part, first);
  }
}

namespace {

using Quantized = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Quantized quantize_cpu(at::TensorList parts, at::ScalarType type, bool rows, bool transposed) {
  check_quantize_fp8(parts, type);
  const at::Tensor x = at::cat(parts, 1).to(at::kFloat);
  const float largest = largest_fp8(type);
  const at::Tensor most = x.numel() ? x.abs().amax().clamp_min(kFp8LeastMaximum) : at::ones({}, x.options());
  const at::Tensor q = (x * (largest / most)).clamp(-largest, largest).to(type);
  const at::Tensor none = at::empty({0}, q.options());
  return {rows ? q : none, transposed ? q.t().contiguous() : none, most / largest};
}

Quantized quantize_meta(at::TensorList parts, at::ScalarType type, bool rows, bool transposed) {
  check_quantize_fp8(parts, type);
  c10::SymInt width = 0;
  for (const at::Tensor& part : parts) width += part.sym_size(1);
  const c10::SymInt n = parts[0].sym_size(0);
  const auto options = parts[0].options().dtype(type);
  const auto make = [&](bool wanted, const c10::SymInt& height, const c10::SymInt& columns) {
    return wanted ? at::empty_symint({height, columns}, options) : at::empty({0}, options);
  };
  return {make(rows, n, width), make(transposed, width, n), at::empty({}, options.dtype(at::kFloat))};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy, m) {
  m.def(
      "quantize_fp8(Tensor[] parts, ScalarType type, bool rows, bool transposed) -> (Tensor rows, Tensor transposed, "
      "Tensor scale)");
}
TORCH_LIBRARY_IMPL(lazy, CPU, m) { m.impl("quantize_fp8", quantize_cpu); }
TORCH_LIBRARY_IMPL(lazy, Meta, m) { m.impl("quantize_fp8", quantize_meta); }
TORCH_LIBRARY_IMPL(lazy, Autograd, m) { m.impl("quantize_fp8", torch::autograd::autogradNotImplementedFallback()); }

Fp8Matrix quantize_fp8(at::TensorList parts, at::ScalarType type, bool rows, bool transposed) {
  static const auto op = operator_handle<decltype(quantize_cpu)>("lazy::quantize_fp8");
  auto [q, q_t, scale] = op.call(parts, type, rows, transposed);
  return {rows ? q : at::Tensor(), transposed ? q_t : at::Tensor(), scale};
}

}  // namespace lazy::ops
