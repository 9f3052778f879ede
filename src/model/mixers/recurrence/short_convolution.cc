#include "model/mixers/recurrence/short_convolution.h"

#include <ATen/ATen.h>

#include <sstream>
#include <vector>

#include "core/error.h"
#include "model/blocks/activation_checkpoint.h"
#include "model/mixers/recurrence/recurrence.h"
#include "ops/recurrence_step.h"
#include "ops/short_convolution.h"

namespace lazy::recurrence {
namespace {

void check(const ConvolutionInputs& in) {
  const bool fits = in.x.dim() == 3 && in.weight.dim() == 3 && in.weight.size(0) == in.x.size(2) &&
                    in.weight.size(1) == 1 && in.weight.size(2) >= 1;
  if (!fits) {
    std::ostringstream found;
    found << in.x.sizes() << " and " << in.weight.sizes();
    fail("short convolution", "expected x (batch, length, channels) and weight (channels, 1, taps), found {}",
         found.str());
  }
  if (in.cu_seqlens.defined() && (in.x.size(0) != 1 || in.state.defined())) {
    fail("short convolution", "packed documents require batch size 1 and no state");
  }
}

// Concatenates the previous inputs (or zeros) and x along the length.
at::Tensor with_past(const ConvolutionInputs& in) {
  const int64_t past = in.weight.size(2) - 1;
  if (in.state.defined()) return at::cat({in.state.to(in.x.scalar_type()), in.x}, 1);
  return at::constant_pad_nd(in.x, {0, 0, past, 0});
}

// Returns the index of each token within its document, starting at 0.
at::Tensor places(const ConvolutionInputs& in) {
  const int64_t length = in.x.size(1);
  const at::Tensor begins = in.cu_seqlens.to(in.x.device(), /*non_blocking=*/true);
  const at::Tensor document = documents_of(begins, length, begins.device()) - 1;
  return at::arange(length, begins.options()) - begins.index_select(0, document);
}

at::Tensor latest(const ConvolutionInputs& in, const at::Tensor& x) {
  if (in.cu_seqlens.defined()) return {};
  const int64_t past = in.weight.size(2) - 1;
  return x.narrow(1, x.size(1) - past, past).detach().clone();
}

bool one_kernel(const ConvolutionInputs& in) {
  return in.x.is_cuda() && in.x.scalar_type() != at::kDouble && in.weight.size(2) <= ops::kMaxTaps;
}

// Computes the convolution with ops::short_convolution, which has no gradient for its argument `past`. If the state
// requires a gradient, it is therefore concatenated with x and convolved as part of the input.
Convolution convolved_at_once(const ConvolutionInputs& in) {
  const int64_t past = in.weight.size(2) - 1, length = in.x.size(1);
  const bool joined = in.state.defined() && in.state.requires_grad() && at::GradMode::is_enabled();
  const at::Tensor x = joined ? with_past(in) : in.x;
  const at::Tensor state = in.state.defined() && !joined ? in.state.to(x.scalar_type()).detach() : at::Tensor();
  const at::Tensor cu_seqlens =
      in.cu_seqlens.defined() ? in.cu_seqlens.to(x.device(), at::kInt, /*non_blocking=*/true) : in.cu_seqlens;
  const at::Tensor y = ops::short_convolution(x, in.weight, in.bias, state, cu_seqlens);
  return {joined ? y.narrow(1, past, length) : y, latest(in, length >= past ? in.x : with_past(in))};
}

}  // namespace

Convolution short_convolution(const ConvolutionInputs& in) {
  check(in);
  if (const ops::ConvolutionStep step{in.x, in.weight, in.bias, in.state}; ops::serves_convolution_step(step)) {
    auto [out, state] = ops::convolution_step(step);
    return {out, state};
  }
  if (one_kernel(in)) return convolved_at_once(in);
  const int64_t taps = in.weight.size(2), length = in.x.size(1);
  at::Tensor place;
  if (in.cu_seqlens.defined()) place = places(in).view({1, -1, 1});
  const auto run = [=](const std::vector<at::Tensor>& t) {
    const at::ScalarType type = state_type(t[0]);
    const at::Tensor x = with_past({.x = t[0], .weight = t[1], .state = t[3]}).to(type), weight = t[1].to(type);
    at::Tensor sum = x.narrow(1, taps - 1, length) * weight.select(2, taps - 1).squeeze(1);
    for (int64_t j = 0; j + 1 < taps; ++j) {
      at::Tensor earlier = x.narrow(1, j, length);
      if (place.defined()) earlier = earlier * place.ge(taps - 1 - j);
      sum.addcmul_(earlier, weight.select(2, j).squeeze(1));
    }
    if (t[2].defined()) sum.add_(t[2].to(type));
    return std::vector<at::Tensor>{at::silu(sum).to(t[0].scalar_type())};
  };
  const at::Tensor out = checkpoint_activations({in.x, in.weight, in.bias, in.state}, run)[0];
  return {out, latest(in, length >= taps - 1 ? in.x : with_past(in))};
}

}  // namespace lazy::recurrence
