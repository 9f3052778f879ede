#include "ops/short_convolution.h"

#include "ops/autograd.h"
#include "ops/fused.h"

namespace lazy::ops {

void check_short_convolution(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  constexpr const char* kName = "short_convolution";
  LAZY_CHECK(kName,
             x.dim() == 3 &&
                 (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf),
             "x (batch, length, channels) of float32, bfloat16 or float16, received ", x.sym_sizes(), " of ",
             x.scalar_type());
  LAZY_CHECK(kName,
             weight.dim() == 3 && weight.sym_size(0) == x.sym_size(2) && weight.sym_size(1) == 1 &&
                 weight.sym_size(2) >= 1 && weight.sym_size(2) <= kMaxTaps && weight.is_floating_point(),
             "weight (", x.sym_size(2), ", 1, taps) of 1 to ", kMaxTaps, " taps, received ", weight.sym_sizes(), " of ",
             weight.scalar_type());
  check_device(kName, "weight", weight, x);
  if (given(bias)) {
    LAZY_CHECK(kName, bias->dim() == 1 && bias->sym_size(0) == x.sym_size(2) && bias->is_floating_point(), "bias (",
               x.sym_size(2), "), received ", bias->sym_sizes(), " of ", bias->scalar_type());
    check_device(kName, "bias", *bias, x);
  }
  if (given(past)) {
    LAZY_CHECK(kName,
               past->dim() == 3 && past->sym_size(0) == x.sym_size(0) && past->sym_size(1) == weight.sym_size(2) - 1 &&
                   past->sym_size(2) == x.sym_size(2) && past->scalar_type() == x.scalar_type(),
               "past (", x.sym_size(0), ", ", weight.sym_size(2) - 1, ", ", x.sym_size(2), ") of ", x.scalar_type(),
               ", received ", past->sym_sizes(), " of ", past->scalar_type());
    check_device(kName, "past", *past, x);
  }
  if (given(cu_seqlens)) {
    LAZY_CHECK(kName,
               cu_seqlens->dim() == 1 && cu_seqlens->scalar_type() == at::kInt && cu_seqlens->sym_size(0) >= 2 &&
                   x.sym_size(0) == 1 && !given(past),
               "cu_seqlens (documents + 1) int32 with a batch of 1 and no past, received ", cu_seqlens->sym_sizes(),
               " of ", cu_seqlens->scalar_type(), " and a batch of ", x.sym_size(0));
    check_device(kName, "cu_seqlens", *cu_seqlens, x);
  }
}

ShortConvolutionGradients split_gradients(const at::Tensor& d_x, const at::Tensor& sums, const at::Tensor& weight,
                                          const OptionalTensor& bias) {
  const int64_t taps = weight.size(2);
  const at::ScalarType type = given(bias) ? bias->scalar_type() : at::kFloat;
  return {d_x, sums.narrow(0, 0, taps).t().unsqueeze(1).to(weight.scalar_type()).contiguous(),
          sums.select(0, taps).to(type).clone()};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Returns one tensor per tap: the input that the tap reads at each token, in fp32. It is zero before the first token
// and where the tap would read across a document boundary.
std::vector<at::Tensor> seen(const at::Tensor& x, int64_t taps, const OptionalTensor& past,
                             const OptionalTensor& cu_seqlens) {
  const at::Tensor in = x.to(at::kFloat);
  const at::Tensor padded =
      given(past) ? at::cat({past->to(at::kFloat), in}, 1) : at::constant_pad_nd(in, {0, 0, taps - 1, 0});
  at::Tensor place;
  if (given(cu_seqlens)) {
    const at::Tensor token = at::arange(x.size(1), cu_seqlens->options());
    const at::Tensor document = at::searchsorted(*cu_seqlens, token, false, /*right=*/true) - 1;
    place = (token - cu_seqlens->index_select(0, document)).view({1, -1, 1});
  }
  std::vector<at::Tensor> out;
  for (int64_t j = 0; j < taps; ++j) {
    const at::Tensor shifted = padded.narrow(1, j, x.size(1));
    out.push_back(place.defined() ? shifted * place.ge(taps - 1 - j) : shifted);
  }
  return out;
}

at::Tensor sums(const std::vector<at::Tensor>& taps, const at::Tensor& weight, const OptionalTensor& bias) {
  at::Tensor sum = at::zeros_like(taps[0]);
  for (size_t j = 0; j < taps.size(); ++j) {
    sum = at::addcmul(sum, taps[j], weight.select(2, static_cast<int64_t>(j)).squeeze(1).to(at::kFloat));
  }
  return given(bias) ? sum + bias->to(at::kFloat) : sum;
}

at::Tensor short_convolution_forward_cpu(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                                         const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  check_short_convolution(x, weight, bias, past, cu_seqlens);
  return at::silu(sums(seen(x, weight.size(2), past, cu_seqlens), weight, bias)).to(x.scalar_type()).contiguous();
}

Triple short_convolution_backward_cpu(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                                      const OptionalTensor& bias, const OptionalTensor& past,
                                      const OptionalTensor& cu_seqlens) {
  check_short_convolution(x, weight, bias, past, cu_seqlens);
  check_like("short_convolution_backward", "d_y", d_y, "x", x);
  const int64_t taps = weight.size(2), length = x.size(1);
  const std::vector<at::Tensor> in = seen(x, taps, past, cu_seqlens);
  const at::Tensor d = at::silu_backward(d_y.to(at::kFloat), sums(in, weight, bias));
  // The gradient at a tap is added to the token that the tap read. seen() of a tensor of ones is a mask: 1 where the
  // tap read a token, 0 where it read padding.
  const std::vector<at::Tensor> there = seen(at::ones_like(x), taps, {}, cu_seqlens);
  at::Tensor d_x = at::zeros(x.sizes(), d.options());
  std::vector<at::Tensor> rows;
  for (int64_t j = 0; j < taps; ++j) {
    const int64_t back = std::min(taps - 1 - j, length);
    const at::Tensor share = d * there[static_cast<size_t>(j)] * weight.select(2, j).squeeze(1).to(at::kFloat);
    d_x.narrow(1, 0, length - back).add_(share.narrow(1, back, length - back));
    rows.push_back((d * in[static_cast<size_t>(j)]).sum(at::IntArrayRef{0, 1}));
  }
  rows.push_back(d.sum(at::IntArrayRef{0, 1}));
  const auto out = split_gradients(d_x.to(x.scalar_type()), at::stack(rows), weight, bias);
  return {out.d_x, out.d_weight, out.d_bias};
}

at::Tensor short_convolution_forward_meta(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                                          const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  check_short_convolution(x, weight, bias, past, cu_seqlens);
  return at::empty_symint(x.sym_sizes(), x.options());
}
Triple short_convolution_backward_meta(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                                       const OptionalTensor& bias, const OptionalTensor& past,
                                       const OptionalTensor& cu_seqlens) {
  check_short_convolution(x, weight, bias, past, cu_seqlens);
  check_like("short_convolution_backward", "d_y", d_y, "x", x);
  const auto type = given(bias) ? bias->scalar_type() : at::kFloat;
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(weight.sym_sizes(), weight.options()),
          at::empty_symint({x.sym_size(2)}, x.options().dtype(type))};
}

Triple backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  static const auto op = operator_handle<decltype(short_convolution_backward_cpu)>("lazy::short_convolution_backward");
  return op.call(d_y, x, weight, bias, past, cu_seqlens);
}

struct ShortConvolution : torch::autograd::Function<ShortConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& bias, const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward(
        {x, weight, tensor_or_undefined(bias), tensor_or_undefined(past), tensor_or_undefined(cu_seqlens)});
    return short_convolution(x, weight, bias, past, cu_seqlens);
  }
  static variable_list backward(AutogradContext* context, variable_list d) {
    const variable_list t = context->get_saved_variables();
    auto [d_x, d_weight, d_bias] = ops::backward(d[0], t[0], t[1], t[2], t[3], t[4]);
    return {d_x, d_weight, t[2].defined() ? d_bias : at::Tensor(), {}, {}};
  }
};

at::Tensor short_convolution_forward_autograd(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                                              const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  return ShortConvolution::apply(x, weight, bias, past, cu_seqlens);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lazy, m) {
  m.def(
      "short_convolution(Tensor x, Tensor weight, Tensor? bias=None, Tensor? past=None, Tensor? cu_seqlens=None) -> "
      "Tensor");
  m.def(
      "short_convolution_backward(Tensor d_y, Tensor x, Tensor weight, Tensor? bias, Tensor? past, Tensor? cu_seqlens)"
      " -> (Tensor d_x, Tensor d_weight, Tensor d_bias)");
}
TORCH_LIBRARY_IMPL(lazy, CPU, m) {
  m.impl("short_convolution", short_convolution_forward_cpu);
  m.impl("short_convolution_backward", short_convolution_backward_cpu);
}
TORCH_LIBRARY_IMPL(lazy, Meta, m) {
  m.impl("short_convolution", short_convolution_forward_meta);
  m.impl("short_convolution_backward", short_convolution_backward_meta);
}
TORCH_LIBRARY_IMPL(lazy, Autograd, m) {
  implement_reverse_mode(m, "short_convolution", short_convolution_forward_autograd);
  m.impl("short_convolution_backward", torch::autograd::autogradNotImplementedFallback());  // no second derivatives
}

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  static const auto op = operator_handle<decltype(short_convolution_forward_cpu)>("lazy::short_convolution");
  return op.call(x, weight, bias, past, cu_seqlens);
}

}  // namespace lazy::ops
