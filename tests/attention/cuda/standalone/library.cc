// C functions that call the CUDA kernels. time.py loads them with ctypes.
#include <cmath>
#include <cstdio>
#include <exception>

#include "lazy/attention_cuda.h"

using namespace lazy::kernels;

namespace {

Problem problem(int normalizer, int batch, int length, int heads, int dim, int bias_window) {
  Problem p;
  p.batch = batch;
  p.q_length = p.k_length = length;
  p.heads = p.kv_heads = heads;
  p.head_dim = p.value_dim = dim;
  p.dtype = DType::bf16;
  p.scale = 1 / std::sqrt(static_cast<double>(dim));
  p.normalizer = normalizer ? Normalizer::elastic : Normalizer::softmax;
  p.bias_window = bias_window;
  return p;
}

CudaCall call_of(int kernel, int deterministic) {
  CudaCall call;
  call.kernel = static_cast<CudaKernel>(kernel);
  call.deterministic = deterministic != 0;
  return call;
}

}  // namespace

extern "C" int64_t lazy_workspace(int, int kernel, int normalizer, int deterministic, int batch, int length, int heads,
                                  int dim, int bias_window) {
  return static_cast<int64_t>(backward_workspace_cuda(problem(normalizer, batch, length, heads, dim, bias_window),
                                                      call_of(kernel, deterministic)));
}

extern "C" int lazy_attention(int is_backward, int kernel, int normalizer, int deterministic, int batch, int length,
                              int heads, int dim, int bias_window, const void* q, const void* k, const void* v,
                              const float* bias, const float* tau, void* out, float* lse, float* stats,
                              const void* d_out, void* d_q, void* d_k, void* d_v, float* d_bias, float* d_tau,
                              void* workspace, void* stream) try {
  const Problem p = problem(normalizer, batch, length, heads, dim, bias_window);
  CudaCall call = call_of(kernel, deterministic);
  call.stream = stream;
  call.workspace = workspace;
  auto view = [&](auto* data) {
    return BasicView<std::remove_pointer_t<decltype(data)>>{data, int64_t{length} * heads * dim, heads * dim, dim, 1};
  };
  if (!is_backward) {
    Forward<float> f;
    f.q = view(q);
    f.k = view(k);
    f.v = view(v);
    f.distance_bias = bias;
    f.tau = tau;
    f.out = view(out);
    f.lse = lse;
    f.stats = stats;
    forward_cuda(p, f, call);
    return 0;
  }
  Backward<float> b;
  b.q = view(q);
  b.k = view(k);
  b.v = view(v);
  b.out = view(const_cast<const void*>(out));
  b.d_out = view(d_out);
  b.distance_bias = bias;
  b.tau = tau;
  b.lse = lse;
  b.d_q = view(d_q);
  b.d_k = view(d_k);
  b.d_v = view(d_v);
  b.d_distance_bias = d_bias;
  b.d_tau = d_tau;
  backward_cuda(p, b, call);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
