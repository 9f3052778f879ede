#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/timing.h"
#include "ops/autograd.h"
#include "ops/load_cuda.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"

namespace lazy::benchmarks {

namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kEps = 1e-6, kBase = 1e4;
constexpr int64_t kHeadDim = 128;

// The inputs of all fused operators.
struct FusedInputs {
  at::Tensor x, residual, weight, d_y;  // shape (rows, dim), except weight: shape (dim), fp32
  at::Tensor gate_up;                   // (rows, 2 dim)
  at::Tensor qkv;                       // output of a fused QKV projection, shape (batch, length, 3 dim)
};

FusedInputs make_inputs(int64_t rows, int64_t dim, const at::TensorOptions& options) {
  const int64_t batch = rows % 8 == 0 ? 8 : 1;
  return {at::randn({rows, dim}, options),
          at::randn({rows, dim}, options),
          at::randn({dim}, options.dtype(at::kFloat)),
          at::randn({rows, dim}, options),
          at::randn({rows, 2 * dim}, options),
          at::randn({batch, rows / batch, 3 * dim}, options)};
}

// Returns a view of the queries in the output of a fused QKV projection, with shape (batch, length, heads, head_dim).
at::Tensor queries(const at::Tensor& qkv) {
  const int64_t dim = qkv.size(-1) / 3, head_dim = std::min(dim, kHeadDim);
  return qkv.narrow(-1, 0, dim).view({qkv.size(0), qkv.size(1), dim / head_dim, head_dim});
}

using NormBackward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                                                        const std::optional<at::Tensor>&);
using SwigluBackward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&);

struct Work {
  std::string name;
  int reads_and_writes;  // number of tensors with rows x dim elements that the operator reads or writes
  std::function<Tensors(const FusedInputs&)> run;
};

std::vector<Work> works() {
  static const auto norm_backward = ops::operator_handle<NormBackward>("lazy::rms_norm_backward");
  static const auto swiglu_backward = ops::operator_handle<SwigluBackward>("lazy::swiglu_backward");
  const auto half = [](const FusedInputs& in, int64_t n) { return in.gate_up.chunk(2, -1)[static_cast<size_t>(n)]; };
  return {{"copy", 2, [](const FusedInputs& in) { return Tensors{at::empty_like(in.x).copy_(in.x)}; }},
          {"rms_norm", 2, [](const FusedInputs& in) { return Tensors{ops::rms_norm(in.x, in.weight, kEps)}; }},
          {"add_rms_norm", 4,
           [](const FusedInputs& in) {
             auto [y, sum] = ops::add_rms_norm(in.x, in.residual, in.weight, kEps);
             return Tensors{y, sum};
           }},
          {"rms_norm backward", 3,
           [](const FusedInputs& in) {
             return Tensors{std::get<0>(norm_backward.call(in.d_y, in.x, in.weight, kEps, {}))};
           }},
          {"rms_norm backward + d_sum", 4,
           [](const FusedInputs& in) {
             return Tensors{std::get<0>(norm_backward.call(in.d_y, in.x, in.weight, kEps, in.residual))};
           }},
          {"swiglu", 3, [half](const FusedInputs& in) { return Tensors{ops::swiglu(half(in, 0), half(in, 1))}; }},
          {"swiglu backward", 5,
           [half](const FusedInputs& in) {
             auto [d_gate, d_up] = swiglu_backward.call(in.d_y, half(in, 0), half(in, 1));
             return Tensors{d_gate, d_up};
           }},
          {"swiglu backward + y", 6,
           [](const FusedInputs& in) {
             auto [d_gate_up, y] = ops::swiglu_halves_backward(in.d_y, in.gate_up, true);
             return Tensors{d_gate_up, y};
           }},
          {"rope", 2, [](const FusedInputs& in) { return Tensors{ops::rope(queries(in.qkv), kBase)}; }}};
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& w) {
  return x * at::rsqrt(x.square().mean(-1, true) + kEps) * w;
}

at::Tensor plain_rope(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  const auto options = x.options().dtype(at::kDouble);
  const at::Tensor frequency = at::pow(kBase, at::arange(half, options) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angle = at::arange(x.size(1), options).view({-1, 1, 1}) * frequency;
  const at::Tensor c = angle.cos().to(x.scalar_type()), s = angle.sin().to(x.scalar_type());
  const at::Tensor a = x.slice(-1, 0, half), b = x.slice(-1, half);
  return at::cat({a * c - b * s, b * c + a * s}, -1);
}

// Compares the values of an operator, and its gradients for random output gradients, with a plain implementation in
// fp32 and float64.
void check(const std::string& what, at::ScalarType type, const Tensors& inputs,
           const std::function<at::Tensor(const Tensors&)>& ours,
           const std::function<at::Tensor(const Tensors&)>& plain) {
  const auto results = [&](const auto& function, std::optional<at::ScalarType> compute) {
    Tensors leaves;
    for (const at::Tensor& t : inputs) {
      leaves.push_back(t.detach().to(compute.value_or(t.scalar_type())).set_requires_grad(true));
    }
    const at::Tensor y = function(leaves);
    at::manual_seed(2);
    const at::Tensor d = at::randn(y.sizes(), y.options().dtype(at::kFloat)).to(type).to(y.scalar_type());
    Tensors all = torch::autograd::grad({y}, leaves, {d});
    all.push_back(y.detach());
    return all;
  };
  const Tensors found = results(ours, {}), second = results(plain, at::kFloat), truth = results(plain, at::kDouble);
  for (size_t n = 0; n < found.size(); ++n) {
    const std::string which = n + 1 == found.size() ? what : fmt::format("gradient {} of {}", n, what);
    require_agreement("bench fused", which, type, found[n], second[n].to(found[n].scalar_type()), truth[n]);
  }
}

void check_all(int64_t dim, at::ScalarType type, const at::TensorOptions& options) {
  at::manual_seed(1);
  const FusedInputs in = make_inputs(64, dim, options);
  check(
      "rms_norm", type, {in.x, in.weight}, [](const Tensors& t) { return ops::rms_norm(t[0], t[1], kEps); },
      [](const Tensors& t) { return plain_norm(t[0], t[1]); });
  // Multiples of 1/32. The sum of two such values is exact in every type, so both implementations normalize equal
  // values.
  const auto thirty_seconds = [&] { return at::randint(-64, 64, in.x.sizes(), options).div(32); };
  check(
      "add_rms_norm", type, {thirty_seconds(), thirty_seconds(), in.weight},
      [](const Tensors& t) {
        auto [y, sum] = ops::add_rms_norm(t[0], t[1], t[2], kEps);
        return at::cat({y, sum});
      },
      [](const Tensors& t) {
        return at::cat({plain_norm(t[0] + t[1], t[2]), t[0] + t[1]});
      });
  check(
      "swiglu", type, {in.gate_up},
      [](const Tensors& t) { return ops::swiglu(t[0].chunk(2, -1)[0], t[0].chunk(2, -1)[1]); },
      [](const Tensors& t) { return at::silu(t[0].chunk(2, -1)[0]) * t[0].chunk(2, -1)[1]; });
  check(
      "rope", type, {in.qkv}, [](const Tensors& t) { return ops::rope(queries(t[0]), kBase); },
      [](const Tensors& t) { return plain_rope(queries(t[0])); });
}

// Returns a function that runs `work` on a different set of inputs at each call, in rotation. The results for a set are
// kept until the set is used again. Therefore neither inputs nor outputs of a call are in the processor's cache.
std::function<void()> in_turn(const Work& work, const std::shared_ptr<const std::vector<FusedInputs>>& sets) {
  auto results = std::make_shared<std::vector<Tensors>>(sets->size());
  return [=, n = size_t{0}]() mutable {
    (*results)[n] = work.run((*sets)[n]);
    n = (n + 1) % sets->size();
  };
}

at::ScalarType scalar_type(const std::string& name) {
  return name == "fp32" ? at::kFloat : name == "fp16" ? at::kHalf : at::kBFloat16;
}

}  // namespace

nlohmann::json run_fused(const FusedBenchmark& o) {
  const bool gpu = o.device == "cuda";
  if (gpu) ops::load_cuda();
  const int64_t rows = o.rows > 0 ? o.rows : gpu ? 32768 : 4096;
  nlohmann::json result = {{"device", o.device}, {"rows", rows}};
  fmt::print(
      "Fused operators on {} rows, {}. Medians of {} runs. Values and gradients of all operators agree with float64.\n"
      "GB/s count each input and output once. ratio = speed / speed of the copy. RoPE reads heads of size {} from the\n"
      "output of a fused QKV projection.\n",
      rows, o.device, o.repeats, kHeadDim);
  for (const std::string& dtype : o.dtypes) {
    const at::ScalarType type = scalar_type(dtype);
    const at::TensorOptions options = at::TensorOptions().dtype(type).device(gpu ? at::kCUDA : at::kCPU);
    for (const int64_t dim : o.dims) {
      if (dim < 1 || (dim > kHeadDim ? dim % kHeadDim : dim % 2) != 0) {
        fail("bench fused", "--dim: expected a multiple of {}, found {}", kHeadDim, dim);
      }
      check_all(dim, type, options);
      const at::NoGradGuard guard;
      const double tensor = static_cast<double>(rows * dim) * static_cast<double>(c10::elementSize(type));
      // Use enough sets of inputs to exceed the cache of a GPU.
      const auto count = std::clamp<int64_t>(static_cast<int64_t>(256e6 / tensor), 2, 8);
      auto sets = std::make_shared<std::vector<FusedInputs>>();
      for (int64_t n = 0; n < count; ++n) sets->push_back(make_inputs(rows, dim, options));
      std::vector<double> ms;
      const std::vector<Work> list = works();
      // one operator at a time: the results of an operator need as much memory as its inputs
      for (const Work& work : list) {
        const std::vector<std::function<void()>> one{in_turn(work, sets)};
        ms.push_back(
            (gpu ? device_medians_ms(o.repeats, static_cast<int>(2 * count), one) : medians_ms(o.repeats, one))[0]);
      }
      const auto speed = [&](size_t n) { return list[n].reads_and_writes * tensor / ms[n] / 1e6; };
      fmt::print("\n{} {} x {}\n{:26} {:>10} {:>8} {:>6}\n", dtype, rows, dim, "", "time", "GB/s", "ratio");
      for (size_t n = 0; n < list.size(); ++n) {
        fmt::print("{:26} {:7.4f} ms {:8.1f} {:6.2f}\n", list[n].name, ms[n], speed(n), speed(n) / speed(0));
        result["operators"].push_back({{"dtype", dtype},
                                       {"dim", dim},
                                       {"operator", list[n].name},
                                       {"ms", ms[n]},
                                       {"gb_per_s", speed(n)},
                                       {"ratio", speed(n) / speed(0)}});
      }
      std::fflush(stdout);
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
