#include "ops/dense_product.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>

#include "ops/signal_stack.h"

namespace lazy::ops {

namespace {

constexpr int64_t kMinRows = 64;  // oneDNN reorders b in every call; with fewer rows, this takes most of the time

// Returns the operator for products with oneDNN, which torch.compile uses too, or nullopt if LibTorch was built without
// oneDNN.
const std::optional<c10::OperatorHandle>& onednn() {
  static const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return handle;
}

bool served(const at::Tensor& a, const at::Tensor& b, at::ScalarType type = at::kFloat) {
  return a.is_cpu() && a.scalar_type() == type && b.scalar_type() == type && a.size(0) >= kMinRows && a.numel() > 0 &&
         b.numel() > 0 && at::globalContext().userEnabledMkldnn() && onednn();
}

at::Tensor by_onednn(const at::Tensor& a, const at::Tensor& b) {
  use_signal_stack();
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  torch::jit::Stack stack{a, b, c10::IValue(), "none", c10::List<std::optional<at::Scalar>>(), ""};
  onednn()->callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

bool multiplies_bf16() {
#ifdef __x86_64__
  static const bool does = __builtin_cpu_supports("avx512bf16");
  return does;
#else
  return true;
#endif
}

// Whether to convert bf16 matrices to fp32 for the product. On processors without bf16 instructions, oneDNN takes four
// times as long for a bf16 product as for an fp32 product of the same size.
bool widened(const at::Tensor& a, const at::Tensor& b) { return !multiplies_bf16() && served(a, b, at::kBFloat16); }

at::Tensor by_widening(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kMaxAtOnce = 1 << 23;  // maximum number of elements of b that are converted at once: 32 MB in fp32
  const at::Tensor wide = a.to(at::kFloat);
  const int64_t rows = std::max<int64_t>(kMaxAtOnce / b.size(1), 1);
  at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options());
  for (int64_t n = 0; n < b.size(0); n += rows) {
    const int64_t count = std::min(rows, b.size(0) - n);
    out.narrow(1, n, count).copy_(by_onednn(wide, b.narrow(0, n, count).to(at::kFloat)));
  }
  return out;
}

}  // namespace

at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b) {
  return served(a, b) ? by_onednn(a, b) : widened(a, b) ? by_widening(a, b) : at::mm(a, b.t());
}

void add_dense_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  served(a, b) ? sum.add_(by_onednn(a, b)) : sum.addmm_(a, b.t());
}

}  // namespace lazy::ops
