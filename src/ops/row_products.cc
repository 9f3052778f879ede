#include "ops/row_products.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace lazy::ops {
namespace {

// The BLAS has kernels of its own for these; and every number of rows has a oneDNN kernel made for it.
constexpr int64_t kFewRows = 16;

// oneDNN's products of dense matrices, which PyTorch's compiler uses: its kernels are made for the processor at hand,
// while MKL takes plain ones on processors that are not Intel's (docs/kernels.md).
const std::optional<c10::OperatorHandle>& onednn() {
  static const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return handle;
}

}  // namespace

at::Tensor row_products(const at::Tensor& x, const at::Tensor& weight) {
  const bool served = x.size(0) >= kFewRows && x.numel() > 0 && weight.numel() > 0;
  if (!served || !at::globalContext().userEnabledMkldnn() || !onednn()) return at::mm(x, weight.t());
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  const c10::List<std::optional<at::Scalar>> no_scalars;
  torch::jit::Stack stack{x.contiguous(), weight.contiguous(), c10::IValue(), "none", no_scalars, ""};
  onednn()->callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

}  // namespace lazy::ops
