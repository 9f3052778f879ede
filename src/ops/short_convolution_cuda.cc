// lazy::short_convolution and its gradients on NVIDIA GPUs.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/short_convolution.h"
#include "ops/fused.h"
#include "ops/short_convolution.h"

namespace lazy::ops {

namespace {

// Owns the tensors that the kernel arguments point to, converted and aligned as the kernel requires.
struct ConvolutionCall {
  at::Tensor x, weight, bias, past, cu_seqlens;
  cuda::ShortConvolution a{};

  ConvolutionCall(const at::Tensor& in, const at::Tensor& weights, const OptionalTensor& biases,
                  const OptionalTensor& before, const OptionalTensor& starts)
      : x(in.stride(2) == 1 ? in : in.contiguous()), weight(weights.to(at::kFloat).contiguous()) {
    if (given(biases)) bias = biases->to(at::kFloat).contiguous();
    if (given(before)) past = before->contiguous();
    if (given(starts)) cu_seqlens = starts->contiguous();
    a.type = row_type("short_convolution", x);
    a.x = x.const_data_ptr();
    a.batch_stride = x.stride(0);
    a.token_stride = x.stride(1);
    a.weight = weight.const_data_ptr<float>();
    if (bias.defined()) a.bias = bias.const_data_ptr<float>();
    if (past.defined()) a.past = past.const_data_ptr();
    if (cu_seqlens.defined()) {
      a.cu_seqlens = cu_seqlens.const_data_ptr<int32_t>();
      a.documents = static_cast<int>(cu_seqlens.size(0)) - 1;
    }
    a.batch = x.size(0);
    a.length = x.size(1);
    a.channels = x.size(2);
    a.taps = static_cast<int>(weight.size(2));
  }
};

at::Tensor convolve_cuda(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  check_short_convolution(x, weight, bias, past, cu_seqlens);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  ConvolutionCall call(x, weight, bias, past, cu_seqlens);
  call.a.y = y.mutable_data_ptr();
  cuda::short_convolution(call.a, c10::cuda::getCurrentCUDAStream());
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward_cuda(const at::Tensor& d_y, const at::Tensor& x,
                                                                      const at::Tensor& weight,
                                                                      const OptionalTensor& bias,
                                                                      const OptionalTensor& past,
                                                                      const OptionalTensor& cu_seqlens) {
  check_short_convolution(x, weight, bias, past, cu_seqlens);
  check_like("short_convolution_backward", "d_y", d_y, "x", x);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t taps = weight.size(2), channels = x.size(2);
  const auto f32 = x.options().dtype(at::kFloat);
  at::Tensor d_x = at::empty(x.sizes(), x.options()), sums = at::zeros({taps + 1, channels}, f32);
  if (x.numel() > 0) {
    const at::Tensor dy = d_y.contiguous();
    ConvolutionCall call(x, weight, bias, past, cu_seqlens);
    at::Tensor parts = at::empty({cuda::short_convolution_parts(call.a), taps + 1, channels}, f32);
    call.a.d_y = dy.const_data_ptr();
    call.a.d_x = d_x.mutable_data_ptr();
    call.a.parts = parts.mutable_data_ptr<float>();
    cuda::short_convolution_backward(call.a, c10::cuda::getCurrentCUDAStream());
    sums = parts.sum(0);
  }
  const auto out = split_gradients(d_x, sums, weight, bias);
  return {out.d_x, out.d_weight, out.d_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(lazy, CUDA, m) {
  m.impl("short_convolution", convolve_cuda);
  m.impl("short_convolution_backward", convolve_backward_cuda);
}

}  // namespace lazy::ops
