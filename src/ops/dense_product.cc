#include "ops/dense_product.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "ops/signal_stack.h"

namespace lazy::ops {

namespace {

constexpr int64_t kFewestRows = 64;  // oneDNN arranges b anew for every product; with fewer rows that takes longer

// The product that PyTorch's compiler uses too; LibTorch may have been built without it.
const std::optional<c10::OperatorHandle>& onednn() {
  static const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return handle;
}

bool served(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && a.size(0) >= kFewestRows &&
         a.numel() > 0 && b.numel() > 0 && at::globalContext().userEnabledMkldnn() && onednn();
}

at::Tensor by_onednn(const at::Tensor& a, const at::Tensor& b) {
  use_signal_stack();
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  torch::jit::Stack stack{a, b, c10::IValue(), "none", c10::List<std::optional<at::Scalar>>(), ""};
  onednn()->callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

}  // namespace

at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b) {
  return served(a, b) ? by_onednn(a, b) : at::mm(a, b.t());
}

void add_dense_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  served(a, b) ? sum.add_(by_onednn(a, b)) : sum.addmm_(a, b.t());
}

}  // namespace lazy::ops
