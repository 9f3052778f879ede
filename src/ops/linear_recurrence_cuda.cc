// lazy::linear_recurrence and its gradients on NVIDIA GPUs: allocates the workspace of a call and launches the kernels.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/recurrence.h"
#include "ops/fused.h"
#include "ops/linear_recurrence.h"

#ifndef LAZY_KERNELS_DEVICE  // tests set CPU and run the kernels on the CPU, in an emulation of CUDA
#define LAZY_KERNELS_DEVICE CUDA
#endif

namespace lazy::ops {

namespace {

using Kernel = void (*)(const cuda::Recurrence&, cudaStream_t);

// Returns x, or a copy of x if its rows are not contiguous or not aligned for vector loads of 16 bytes.
at::Tensor vectors(const at::Tensor& x) {
  const auto whole = [](int64_t stride) { return stride % 8 == 0; };
  const bool fit = x.stride(3) == 1 && whole(x.stride(0)) && whole(x.stride(1)) && whole(x.stride(2)) &&
                   reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return fit ? x : x.clone(at::MemoryFormat::Contiguous);
}

class RecurrenceCall {
 public:
  RecurrenceCall(LAZY_RECURRENCE_PARAMETERS) : bf16_(v.options()), f32_(v.options().dtype(at::kFloat)) {
    check_linear_recurrence(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
    a.B = v.size(0), a.L = v.size(1), a.H = v.size(2), a.V = v.size(3), a.G = q.size(2), a.K = q.size(3);
    a.scale = static_cast<float>(scale);
    a.delta = delta;
    a.q = rows(q), a.k = rows(k), a.v = rows(v);
    a.log_decay = numbers<float>(log_decay);
    a.constant_decay = given(log_decay) && log_decay->dim() == 1;
    a.beta = numbers<float>(beta);
    a.skip = numbers<float>(skip);
    a.documents = numbers<int32_t>(documents);
    a.initial_state = numbers<float>(initial_state);
    const int64_t chunks = a.B * a.chunks() * a.H;
    a.gates = reinterpret_cast<cuda::ChunkGates*>(
        memory({chunks, static_cast<int64_t>(sizeof(cuda::ChunkGates))}, f32_.dtype(at::kByte)).mutable_data_ptr());
    if (delta) {
      a.inverse = bf16(memory({chunks, cuda::kChunk, cuda::kChunk}, bf16_));
      a.u = bf16(memory({a.B, a.L, a.H, a.V}, bf16_));
    }
    a.states = bf16(memory({chunks, a.K, a.V}, bf16_));
  }

  cuda::RecurrenceRows rows(const at::Tensor& x) {
    const at::Tensor fit = vectors(x);
    kept_.push_back(fit);
    return {reinterpret_cast<const __nv_bfloat16*>(fit.const_data_ptr()), fit.stride(0), fit.stride(1), fit.stride(2)};
  }
  template <typename T>
  const T* numbers(const OptionalTensor& t) {
    if (!given(t)) return nullptr;
    kept_.push_back(t->contiguous());
    return kept_.back().const_data_ptr<T>();
  }
  at::Tensor memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
    kept_.push_back(at::empty(sizes, options));
    return kept_.back();
  }
  static __nv_bfloat16* bf16(const at::Tensor& t) { return reinterpret_cast<__nv_bfloat16*>(t.mutable_data_ptr()); }

  void run(std::initializer_list<Kernel> kernels) const {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    for (const Kernel kernel : kernels) kernel(a, stream);
  }

  cuda::Recurrence a{};

 protected:
  at::TensorOptions bf16_, f32_;

 private:
  std::vector<at::Tensor> kept_;
};

RecurrenceOutputs recur_cuda(LAZY_RECURRENCE_PARAMETERS) {
  const c10::cuda::CUDAGuard guard(v.device());
  RecurrenceCall call(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
  const auto f32 = v.options().dtype(at::kFloat);
  at::Tensor out = at::empty(v.sizes(), v.options());
  at::Tensor state = at::empty({0}, f32);
  call.a.out = call.bf16(out);
  if (!given(documents)) {
    state = at::empty({v.size(0), v.size(2), q.size(3), v.size(3)}, f32);
    call.a.final_state = state.mutable_data_ptr<float>();
  }
  call.run({cuda::recurrence_gates});
  if (delta) call.run({cuda::recurrence_matrices});
  call.run({cuda::recurrence_states, cuda::recurrence_outputs});
  return {out, state};
}

RecurrenceGradients recur_backward_cuda(const at::Tensor& d_out, const OptionalTensor& d_state,
                                        LAZY_RECURRENCE_PARAMETERS) {
  const c10::cuda::CUDAGuard guard(v.device());
  check_like("linear_recurrence_backward", "d_out", d_out, "v", v);
  RecurrenceCall call(q, k, v, log_decay, beta, skip, initial_state, documents, scale, delta);
  cuda::Recurrence& a = call.a;
  const auto bf16 = v.options(), f32 = v.options().dtype(at::kFloat);
  const int64_t chunks = a.B * a.chunks() * a.H, slices = cuda::recurrence_slices(a.K);
  a.d_out = call.rows(d_out);
  if (given(d_state)) {
    LAZY_CHECK("linear_recurrence_backward",
               d_state->sizes() == at::IntArrayRef({a.B, a.H, a.K, a.V}) && d_state->scalar_type() == at::kFloat,
               "d_state with the shape of the state and type float32, received ", d_state->sizes(), " of ",
               d_state->scalar_type());
    a.d_final_state = call.numbers<float>(d_state);
  }
  a.pairs = call.bf16(call.memory({chunks, cuda::kChunk, cuda::kChunk}, bf16));
  a.d_states = call.bf16(call.memory({chunks, a.K, a.V}, bf16));
  at::Tensor d_u = at::empty(v.sizes(), bf16), d_v = given(beta) || given(skip) ? at::empty(v.sizes(), bf16) : d_u;
  at::Tensor d_q = at::empty({a.B, a.L, a.H, a.K}, bf16), d_k = at::empty_like(d_q);
  const auto scalars = [&](const OptionalTensor& t, float*& to) {
    const at::Tensor shares = given(t) ? at::empty({slices, a.B, a.L, a.H}, f32) : at::empty({0}, f32);
    if (given(t)) to = shares.mutable_data_ptr<float>();
    return shares;
  };
  at::Tensor d_log_decay = scalars(log_decay, a.d_log_decay), d_beta = scalars(beta, a.d_beta);
  at::Tensor d_initial = given(initial_state) ? at::empty(initial_state->sizes(), f32) : at::empty({0}, f32);
  a.d_u = call.bf16(d_u);
  if (!d_v.is_same(d_u)) a.d_v = call.bf16(d_v);
  at::Tensor d_skip = at::empty({given(skip) ? a.B * a.L : 0, a.H}, f32);
  if (given(skip)) a.d_skip = d_skip.mutable_data_ptr<float>();
  a.d_q = call.bf16(d_q);
  a.d_k = call.bf16(d_k);
  if (given(initial_state)) a.d_initial_state = d_initial.mutable_data_ptr<float>();
  call.run({cuda::recurrence_gates, cuda::recurrence_matrices, cuda::recurrence_states,
            cuda::recurrence_state_gradients, cuda::recurrence_gradients});
  if (a.G < a.H) {
    d_q = d_q.view({a.B, a.L, a.G, a.H / a.G, a.K}).sum(3);
    d_k = d_k.view({a.B, a.L, a.G, a.H / a.G, a.K}).sum(3);
  }
  if (a.constant_decay) {
    d_log_decay = d_log_decay.sum(at::IntArrayRef{0, 1, 2});
  } else if (given(log_decay)) {
    d_log_decay = d_log_decay.sum(0);
  }
  if (given(beta)) d_beta = d_beta.sum(0);
  if (given(skip)) d_skip = d_skip.sum(0);
  return {d_q, d_k, d_v, d_log_decay, d_beta, d_skip, d_initial};
}

const bool recurrence_fits_registered = [] {
  set_recurrence_fits(c10::DeviceType::LAZY_KERNELS_DEVICE, cuda::recurrence_fits);
  return true;
}();

}  // namespace

TORCH_LIBRARY_IMPL(lazy, LAZY_KERNELS_DEVICE, m) {
  m.impl("linear_recurrence", recur_cuda);
  m.impl("linear_recurrence_backward", recur_backward_cuda);
}

}  // namespace lazy::ops
