// Macros for the registration of operators, and ATen functions and guards for kernels. There are two builds: with
// LibTorch, and with the stable ABI of LibTorch (ops/tensor.h).
#pragma once
#ifdef LAZY_STABLE_ABI
#include "ops/stable/library.h"
#else
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

// Usage: LAZY_SCHEMAS(m) { m.def("..."); }   LAZY_KERNELS(CPU, m) { m.impl("name", LAZY_KERNEL(function)); }
#define LAZY_SCHEMAS(m) TORCH_LIBRARY_FRAGMENT(lazy, m)
#define LAZY_KERNELS(key, m) TORCH_LIBRARY_IMPL(lazy, key, m)
#define LAZY_KERNEL(function) function

namespace lazy::ops {

// Whether torch.use_deterministic_algorithms is enabled.
inline bool deterministic_algorithms() { return at::globalContext().deterministicAlgorithms(); }

// Remembers a tensor and its version: is(t) says whether t is the same tensor and has not been modified since.
class SeenTensor {
 public:
  explicit SeenTensor(const at::Tensor& t) : tensor_(t.getIntrusivePtr()), version_(t._version()) {}
  bool is(const at::Tensor& t) const {
    return tensor_.lock().get() == t.unsafeGetTensorImpl() && version_ == t._version();
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  int64_t version_;
};

// Computes sum += a b. All matrices have one dtype, or a and b have 16 bits and the sum is fp32 (on a GPU).
inline void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  a.scalar_type() == sum.scalar_type() ? at::addmm_out(sum, sum, a, b) : at::addmm_out(sum, sum, a, b, at::kFloat);
}

// Disables autograd and autocast during its lifetime, for kernels that call ATen functions.
struct KernelGuard {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace lazy::ops
#endif
