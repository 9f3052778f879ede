// CPU operators for test_stable.py. They call functions of ops/stable/tensor.h that otherwise only GPU kernels use.
#include "ops/library.h"

namespace lazy::ops {

namespace {

at::Tensor padded(const at::Tensor& x) { return at::constant_pad_nd(x, {0, 3}); }
at::Tensor strided(const at::Tensor& x) { return x.as_strided({2, 3}, {1, 2}); }
at::Tensor as_integers(const at::Tensor& x) { return x.view(at::kInt); }
at::Tensor as_double(const at::Tensor& x) { return x.to(at::kCPU, at::kDouble, /*non_blocking=*/true); }

at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor) {
  const at::Tensor out = at::empty(x.sizes(), x.options());
  return at::mul_out(out, x, factor);
}

at::Tensor asserted(const at::Tensor& condition) {
  at::_assert_async(condition, "lazy_test: expected true");
  return condition;
}

// Returns 2 a b: computes the matrix product by mm_out and adds it again by add_product.
at::Tensor twice_product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  at::mm_out(out, a, b);
  add_product(out, a, b);
  return out;
}

// Returns three truth values: y is the unchanged x; y is pinned; y was created in inference mode.
at::Tensor seen(const at::Tensor& x, const at::Tensor& y) {
  static const SeenTensor first(x);
  at::Tensor out = at::empty({3}, x.options().dtype(at::kBool));
  bool* values = out.mutable_data_ptr<bool>();
  values[0] = first.is(y);
  values[1] = y.is_pinned();
  values[2] = y.is_inference();
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(lazy_test, m) {
  m.def("padded(Tensor x) -> Tensor");
  m.def("strided(Tensor x) -> Tensor");
  m.def("as_integers(Tensor x) -> Tensor");
  m.def("as_double(Tensor x) -> Tensor");
  m.def("scaled(Tensor x, Tensor factor) -> Tensor");
  m.def("asserted(Tensor condition) -> Tensor");
  m.def("twice_product(Tensor a, Tensor b) -> Tensor");
  m.def("seen(Tensor x, Tensor y) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(lazy_test, CPU, m) {
  m.impl("padded", LAZY_KERNEL(padded));
  m.impl("strided", LAZY_KERNEL(strided));
  m.impl("as_integers", LAZY_KERNEL(as_integers));
  m.impl("as_double", LAZY_KERNEL(as_double));
  m.impl("scaled", LAZY_KERNEL(scaled));
  m.impl("asserted", LAZY_KERNEL(asserted));
  m.impl("twice_product", LAZY_KERNEL(twice_product));
  m.impl("seen", LAZY_KERNEL(seen));
}

}  // namespace lazy::ops
