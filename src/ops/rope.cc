#include "ops/rope.h"

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/fused.h"
#include "ops/rows.h"

namespace lazy::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Cosines and sines by position, kept for the process: a fp64 sine a pair and position costs more than the rotation.
struct Table {
  int64_t positions = 0, half = 0;
  std::vector<float> cos, sin;              // (positions, half)
};

std::shared_ptr<const Table> table(double base, int64_t half, int64_t positions) {
  static std::mutex mutex;
  static std::map<std::pair<double, int64_t>, std::shared_ptr<const Table>> tables;
  std::lock_guard lock(mutex);
  auto& known = tables[{base, half}];
  if (known && known->positions >= positions) return known;
  auto grown = std::make_shared<Table>();
  grown->positions = std::max(positions, known ? 2 * known->positions : int64_t{256});
  grown->half = half;
  grown->cos.resize(grown->positions * half);
  grown->sin.resize(grown->positions * half);
  for (int64_t d = 0; d < half; ++d) {
    const double frequency = std::pow(base, -static_cast<double>(d) / static_cast<double>(half));
    for (int64_t t = 0; t < grown->positions; ++t) {
      grown->cos[t * half + d] = static_cast<float>(std::cos(static_cast<double>(t) * frequency));
      grown->sin[t * half + d] = static_cast<float>(std::sin(static_cast<double>(t) * frequency));
    }
  }
  return known = grown;
}

void check(const at::Tensor& x, double base, int64_t offset) {
  row_type("rope", x);
  LAZY_CHECK("rope", x.dim() == 4 && x.sym_size(3) % 2 == 0,
             "x of shape (batch, length, heads, even head_dim), received ", x.sym_sizes());
  LAZY_CHECK("rope", base > 0, "base above 0, received ", base);
  LAZY_CHECK("rope", offset >= 0, "offset of at least 0, received ", offset);
}

at::Tensor forward_cpu(const at::Tensor& x, double base, int64_t offset, bool inverse) {
  check(x, base, offset);
  const at::Tensor in = x.stride(3) == 1 ? x : x.contiguous();
  const int64_t length = x.size(1), heads = x.size(2), dim = x.size(3);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  const auto angles = table(base, dim / 2, offset + length);
  parallel_rows(x.size(0) * length, heads * dim, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t b = n / length, t = n % length, row = (offset + t) * (dim / 2);
      rows::rope(row_type("rope", x), in.const_data_ptr(), b * in.stride(0) + t * in.stride(1), in.stride(2),
                 angles->cos.data() + row, angles->sin.data() + row, inverse ? -1.0f : 1.0f, y.mutable_data_ptr(),
                 n * heads * dim, heads, dim);
    }
  });
  return y;
}

at::Tensor forward_meta(const at::Tensor& x, double base, int64_t offset, bool) {
  check(x, base, offset);
  return at::empty_symint(x.sym_sizes(), x.options());
}

at::Tensor call(const at::Tensor& x, double base, int64_t offset, bool inverse) {
  static const auto op = operator_handle<decltype(forward_cpu)>("lazy::rope");
  return op.call(x, base, offset, inverse);
}

// Linear, and its transpose is the rotation back: every derivative is the operator itself.
struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double base, int64_t offset, bool inverse) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["base"] = base;
    context->saved_data["offset"] = offset;
    context->saved_data["inverse"] = inverse;
    return call(x, base, offset, inverse);
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    auto& data = context->saved_data;
    return {call(d[0], data["base"].toDouble(), data["offset"].toInt(), !data["inverse"].toBool()), {}, {}, {}};
  }
};

at::Tensor forward_autograd(const at::Tensor& x, double base, int64_t offset, bool inverse) {
  return Rope::apply(x, base, offset, inverse);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy, m) {
  m.def("rope(Tensor x, float base, int offset=0, bool inverse=False) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy, CPU, m) { m.impl("rope", forward_cpu); }
TORCH_LIBRARY_IMPL(lazy, Meta, m) { m.impl("rope", forward_meta); }
TORCH_LIBRARY_IMPL(lazy, Autograd, m) { m.impl("rope", forward_autograd); }

at::Tensor rope(const at::Tensor& x, double base, int64_t offset) { return call(x, base, offset, false); }

}  // namespace lazy::ops
