// dense_product, implemented with the stable ABI of LibTorch.
#include "ops/dense_product.h"

#include <dlfcn.h>

#include "ops/library.h"
#include "ops/signal_stack.h"

namespace lazy::ops {

namespace {

constexpr int64_t kMinRows = 64;  // oneDNN reorders b in every call; with fewer rows, this takes most of the time

// The type of the function in LibTorch's C interface that computes x w^T with oneDNN. onednn() returns this function,
// or null if LibTorch was built without oneDNN.
using LinearPointwise = AOTITorchError(AtenTensorHandle x, AtenTensorHandle w, AtenTensorHandle* bias,
                                       const char* activation, const double** scalars, int64_t scalar_count,
                                       const char** algorithm, AtenTensorHandle* product);

LinearPointwise* onednn() {
  static const auto function =
      reinterpret_cast<LinearPointwise*>(dlsym(RTLD_DEFAULT, "aoti_torch_cpu__linear_pointwise"));
  return function;
}

}  // namespace

at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b) {
  const bool served = a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
                      a.size(0) >= kMinRows && a.numel() > 0 && b.numel() > 0 && onednn();
  if (!served) return at::mm(a, b.t());
  use_signal_stack();
  AtenTensorHandle product = nullptr;
  const char* algorithm = "";
  TORCH_ERROR_CODE_CHECK(
      onednn()(a.stable().get(), b.stable().get(), nullptr, "none", nullptr, 0, &algorithm, &product));
  return at::Tensor(torch::stable::Tensor(product));
}

}  // namespace lazy::ops
