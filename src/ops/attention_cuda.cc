// lazy::attention on NVIDIA GPUs: pads and copies the tensors for the tensor-core kernels if necessary, allocates the
// outputs, and runs the kernels on the current stream.
#include "ops/attention_cuda.h"

#include "lazy/attention_cuda.h"
#include "ops/attention_pointers.h"
#include "ops/cuda/cumulative_lengths.h"
#include "ops/cuda/launch.h"
#include "ops/cuda_library.h"
#include "ops/cuda_stream.h"
#include "ops/forced_kernel.h"
#include "ops/library.h"

namespace lazy::ops {

namespace {

using kernels::CudaCall;
using kernels::CudaKernel;
using kernels::Problem;

CudaKernel kernel_from(const std::string& name) {
  for (const auto kernel : {CudaKernel::plain, CudaKernel::portable, CudaKernel::hopper}) {
    if (name == kernels::name(kernel)) return kernel;
  }
  return CudaKernel::automatic;  // for "automatic", and for "reference", which the callers handle before this call
}

CudaCall make_call(bool deterministic) {
  CudaCall call;
  call.stream = current_stream();
  call.deterministic = deterministic_wanted(deterministic);
  call.kernel = kernel_from(forced_kernel());
  return call;
}

// Returns the head size to which a tensor-core kernel must pad q, k and v (with zeros) to compute this problem, or 0 if
// no such kernel supports it. The Hopper kernel is preferred, even if it needs more padding than the portable kernel,
// because it is still faster.
int64_t padded_size(Problem p, CudaKernel kernel) {
  int64_t portable = 0;
  for (const int64_t size : kernels::kTensorCoreHeadSizes) {
    if (size < std::max(p.head_dim, p.value_dim)) continue;
    p.head_dim = p.value_dim = size;
    if (kernel != CudaKernel::automatic) {
      if (kernels::unmet_condition_cuda(p, kernel).empty()) return size;
      continue;
    }
    const CudaKernel best = kernels::choose_cuda(p);
    if (best == CudaKernel::hopper) return size;
    if (best == CudaKernel::portable && portable == 0) portable = size;
  }
  return portable;
}

// Returns t, or a copy, with strides that the tensor-core kernels support: they copy 16 bytes at a time, and TMA does
// not support a stride of 0. The stride of an axis with one element is arbitrary; it is replaced by a multiple of 8.
at::Tensor movable(const at::Tensor& t) {
  bool good = t.stride(-1) == 1 && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0, single = false;
  for (int64_t d = 0; d + 1 < t.dim(); ++d) {
    good = good && (t.size(d) == 1 || (t.stride(d) > 0 && t.stride(d) % 8 == 0));
    single = single || (t.size(d) == 1 && t.stride(d) % 8 != 0);
  }
  const at::Tensor x = good ? t : t.contiguous();
  if (!single) return x;
  auto strides = x.strides().vec();
  for (int64_t d = 0; d + 1 < x.dim(); ++d) {
    if (x.size(d) == 1) strides[d] = x.size(-1);
  }
  return x.as_strided(x.sizes(), strides);
}

at::Tensor pad(const at::Tensor& t, int64_t size) {
  return movable(t.size(-1) == size ? t : at::constant_pad_nd(t, {0, size - t.size(-1)}));
}

// An attention problem in the form that the kernels expect, with the tensors that own its memory.
struct Prepared {
  at::Tensor q, k, v, cu_q, cu_k;
  Problem p;
  int64_t size = 0;  // padded head size; 0: the tensors are used as given

  Prepared(const AttentionArguments& a, CudaCall& call) : q(a.q), k(a.k), v(a.v), p(attention_problem(a, cu_q, cu_k)) {
    // The plain kernel needs no padding. It also computes problems without queries or without keys.
    const bool plain = call.kernel == CudaKernel::plain || p.dtype == kernels::DType::f32 ||
                       p.dtype == kernels::DType::f64 || a.q.numel() == 0 || a.k.numel() == 0;
    size = plain ? 0 : padded_size(p, call.kernel);
    if (size) {
      p.head_dim = p.value_dim = size;
      q = pad(q, size);
      k = pad(k, size);
      v = pad(v, size);
    } else if (a.q.numel() == 0 || a.k.numel() == 0) {
      call.kernel = CudaKernel::plain;
    }
    const std::string unmet = kernels::unmet_condition_cuda(p, call.kernel);
    TORCH_CHECK(unmet.empty(), "lazy::attention: ", unmet);
  }
  AttentionArguments arguments(const AttentionArguments& a) const {
    return {q,
            k,
            v,
            a.distance_bias,
            a.tau,
            a.sink,
            a.alibi_slopes,
            a.normalizer,
            a.offset,
            a.sigmoid_bias,
            a.scale,
            a.softcap,
            a.causal,
            a.window,
            a.cu_seqlens_q,
            a.cu_seqlens_k,
            a.deterministic};
  }
  // Returns the tensor to which the kernel writes the result `t`: t itself, or a new tensor with the padded head size.
  at::Tensor room(const at::Tensor& t) const {
    if (!t.numel() || !size || t.size(-1) == size) return t;
    auto sizes = t.sizes().vec();
    sizes.back() = size;
    return at::empty(sizes, t.options());
  }
};

void keep(at::Tensor& result, const at::Tensor& room) {
  if (!result.is_same(room)) result.copy_(room.narrow(-1, 0, result.size(-1)));
}

// Runs the forward pass. for_backward: the fourth result is alive_sum (see empty_alive_sum), which has no elements if
// the backward pass does not need it.
ForwardOutputs run_forward(const AttentionArguments& a, int64_t return_stats, bool for_backward) {
  const DeviceGuard guard(a.q);
  CudaCall call = make_call(a.deterministic);
  const Prepared prepared(a, call);
  auto [out, lse, stats] = empty_outputs(a, return_stats);
  at::Tensor alive_sum = for_backward ? empty_alive_sum(a, out) : at::empty({0}, out.options());
  at::Tensor room = prepared.room(out), alive_room;
  InputPointers<float, kernels::Forward<float>> filled(prepared.arguments(a));
  set_outputs<float>(filled.arguments, room, lse, stats);
  const bool writes = alive_sum.numel() && kernels::writes_alive_sum_cuda(prepared.p, call);
  if (writes) {
    alive_room = prepared.room(alive_sum);
    filled.arguments.alive_sum = view(alive_room);
  }
  kernels::forward_cuda(prepared.p, filled.arguments, call);
  keep(out, room);
  if (writes) keep(alive_sum, alive_room);
  return {out, lse, stats, alive_sum};
}

AttentionOutputs attention_cuda(LAZY_ATTENTION_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  if (reference_is_forced(a)) {
    return attention_by_reference(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias,
                                  scale, softcap, causal, window, cu_seqlens_q, cu_seqlens_k, return_stats,
                                  deterministic);
  }
  auto [out, lse, stats, alive_sum] = run_forward(a, return_stats, false);
  return {out, lse, stats};
}

ForwardOutputs attention_forward_cuda(LAZY_ATTENTION_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  if (!reference_is_forced(a)) return run_forward(a, return_stats, true);
  auto [out, lse, stats] =
      attention_by_reference(q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer, offset, sigmoid_bias, scale,
                             softcap, causal, window, cu_seqlens_q, cu_seqlens_k, return_stats, deterministic);
  return {out, lse, stats, at::empty({0}, q.options())};
}

BackwardOutputs attention_backward_cuda(LAZY_ATTENTION_BACKWARD_PARAMETERS) {
  const AttentionArguments a LAZY_ATTENTION_PACK;
  check_attention(a);
  check_backward(a, d_out, out, lse, alive_sum);
  if (reference_is_forced(a)) {
    return attention_backward_by_reference(d_out, out, lse, q, k, v, distance_bias, tau, sink, alibi_slopes, normalizer,
                                           offset, sigmoid_bias, scale, softcap, causal, window, cu_seqlens_q,
                                           cu_seqlens_k, deterministic, output_mask, alive_sum);
  }
  AttentionGradients g = empty_gradients(a, output_mask);
  run_attention_backward(a, d_out, out, lse, alive_sum, {}, g);
  return {g.q, g.k, g.v, g.distance_bias, g.tau, g.sink, g.alibi_slopes};
}

bool checks_lengths_in_graph(const at::Tensor& t, int64_t tokens, bool of_keys) {
  const DeviceGuard guard(t);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(current_stream(), &status), "attention");
  if (status == cudaStreamCaptureStatusNone) return false;
  cuda::check_cumulative_lengths({.data = t.const_data_ptr(),
                                  .wide = t.scalar_type() == at::kLong,
                                  .count = t.numel(),
                                  .tokens = tokens,
                                  .of_keys = of_keys},
                                 current_stream());
  return true;
}

std::string chosen(const Problem& problem) {
  Problem p = problem;
  if (const int64_t size = p.dtype == kernels::DType::f32 ? 0 : padded_size(p, CudaKernel::automatic))
    p.head_dim = p.value_dim = size;
  return kernels::name(kernels::choose_cuda(p));
}

}  // namespace

bool rotates_back(const AttentionArguments& a) {
  at::Tensor cu_q, cu_k;
  return kernels::rotates_back_cuda(attention_problem(a, cu_q, cu_k), make_call(a.deterministic));
}

bool run_attention_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                            const at::Tensor& lse, const OptionalTensor& alive_sum, const Rotation& rotation,
                            AttentionGradients& g, bool of_part) {
  const DeviceGuard guard(a.q);
  CudaCall call = make_call(a.deterministic);
  const Prepared prepared(a, call);
  InputPointers<float, kernels::Backward<float>> filled(prepared.arguments(a));
  const at::Tensor o = prepared.size ? pad(out, prepared.size) : out,
                   d_o = prepared.size ? pad(d_out, prepared.size) : d_out;
  const at::Tensor lse_contiguous = lse.contiguous();
  AttentionGradients room = g;
  for (at::Tensor* t : {&room.q, &room.k, &room.v}) *t = prepared.room(*t);
  set_backward(filled.arguments, d_o, o, lse_contiguous, room);
  const bool has_alive_sum = given(alive_sum) && alive_sum->numel() && kernels::writes_alive_sum_cuda(prepared.p, call);
  const at::Tensor alive = has_alive_sum ? pad(*alive_sum, prepared.size) : at::Tensor();
  if (has_alive_sum) filled.arguments.alive_sum = const_view(alive);
  filled.arguments.cos = rotation.cos;
  filled.arguments.sin = rotation.sin;
  if (of_part && !kernels::reads_rows_from_out_cuda(prepared.p, filled.arguments, call)) return false;
  const at::Tensor workspace = at::empty({static_cast<int64_t>(kernels::backward_workspace_cuda(prepared.p, call))},
                                         a.q.options().dtype(at::kByte));
  call.workspace = workspace.mutable_data_ptr();
  kernels::backward_cuda(prepared.p, filled.arguments, call);
  keep(g.q, room.q);
  keep(g.k, room.k);
  keep(g.v, room.v);
  return true;
}

LAZY_KERNELS(CUDA, m) {
  m.impl("attention", LAZY_KERNEL(attention_cuda));
  m.impl("attention_forward", LAZY_KERNEL(attention_forward_cuda));
  m.impl("attention_backward", LAZY_KERNEL(attention_backward_cuda));
  cuda_library().attention_kernel = chosen;
  cuda_library().checks_lengths_in_graph = checks_lengths_in_graph;
}

}  // namespace lazy::ops
