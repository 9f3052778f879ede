#include "run_cuda.h"

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace lazy::kernels::test {

namespace {

void ok(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Device memory that starts as NaN (all ones) in every type.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    ok(cudaMalloc(&data_, bytes + 256));
    ok(cudaMemset(data_, 0xFF, bytes + 256));
  }
  Memory(const void* from, size_t bytes) : Memory(bytes) { ok(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  template <typename T = void>
  T* get() const { return static_cast<T*>(data_); }
  void read(void* to) const { ok(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// A Buffer of the CPU tests and its copy on the device.
class Mirror {
 public:
  Mirror(const Tensor& like, const Shape& s)
      : buffer_(like, s.dtype, s.layout),
        bytes_((like.data.size() * (s.layout == Layout::strided_dims ? 2 : 1)) * (s.dtype == DType::f32 ? 4 : 2)),
        memory_(bytes_) {}
  void fill(const Tensor& from) {
    buffer_.fill(from);
    ok(cudaMemcpy(memory_.get(), buffer_.view().data, bytes_, cudaMemcpyHostToDevice));
  }
  View view() {
    View v = buffer_.view();
    v.data = memory_.get();
    return v;
  }
  ConstView const_view() {
    const View v = view();
    return {v.data, v.batch, v.token, v.head, v.dim};
  }
  Tensor read() {
    ok(cudaMemcpy(buffer_.view().data, memory_.get(), bytes_, cudaMemcpyDeviceToHost));
    return buffer_.read();
  }

 private:
  Buffer buffer_;
  size_t bytes_;
  Memory memory_;
};

struct Floats {
  explicit Floats(const std::vector<double>& x) : size(x.size()), memory(size * 4) {
    const std::vector<float> narrow(x.begin(), x.end());
    ok(cudaMemcpy(memory.get(), narrow.data(), size * 4, cudaMemcpyHostToDevice));
  }
  explicit Floats(size_t n) : size(n), memory(n * 4) {}
  float* get() const { return size ? memory.get<float>() : nullptr; }
  std::vector<double> read() const {
    std::vector<float> x(size);
    memory.read(x.data());
    return {x.begin(), x.end()};
  }
  size_t size;
  Memory memory;
};

}  // namespace

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

CudaRun& current_run() {
  static CudaRun run;
  return run;
}

Results run_cuda(const Shape& s, const Inputs& in) {
  Problem p = make_problem(s);
  const Memory cu_q(s.cu_q.data(), s.cu_q.size() * 4), cu_k(s.cu_k.data(), s.cu_k.size() * 4);
  if (!s.cu_q.empty()) {
    p.cu_seqlens_q = cu_q.get<int32_t>();
    p.cu_seqlens_k = cu_k.get<int32_t>();
  }
  Mirror q(in.q, s), k(in.k, s), v(in.v, s), d_out(in.d_out, s), out(in.d_out, s), d_q(in.q, s), d_k(in.k, s), d_v(in.v, s);
  q.fill(in.q);
  k.fill(in.k);
  v.fill(in.v);
  d_out.fill(in.d_out);
  const Floats bias(in.distance_bias), tau(in.tau), sink(in.sink), slopes(in.alibi_slopes);
  const size_t rows = s.batch * s.heads * s.q_length;
  const Floats lse(rows), stats(3 * rows), d_bias(bias.size), d_tau(tau.size), d_sink(sink.size), d_slopes(slopes.size);
  auto fill = [&](auto& a) {
    a.q = q.const_view();
    a.k = k.const_view();
    a.v = v.const_view();
    a.distance_bias = bias.get();
    a.tau = tau.get();
    a.sink = sink.get();
    a.alibi_slopes = slopes.get();
  };
  CudaCall call;
  call.kernel = current_run().kernel;
  call.deterministic = current_run().deterministic;
  Forward<float> f;
  fill(f);
  f.out = out.view();
  f.lse = lse.get();
  f.stats = stats.get();
  forward_cuda(p, f, call);
  Backward<float> b;
  fill(b);
  b.out = out.const_view();
  b.d_out = d_out.const_view();
  b.lse = lse.get();
  b.d_q = d_q.view();
  b.d_k = d_k.view();
  b.d_v = d_v.view();
  b.d_distance_bias = d_bias.get();
  b.d_tau = d_tau.get();
  b.d_sink = d_sink.get();
  b.d_alibi_slopes = d_slopes.get();
  const Memory workspace(backward_workspace_cuda(p, call));
  call.workspace = workspace.get();
  backward_cuda(p, b, call);
  ok(cudaDeviceSynchronize());
  return {out.read(), d_q.read(), d_k.read(), d_v.read(), lse.read(), stats.read(), d_bias.read(), d_tau.read(),
          d_sink.read(), d_slopes.read()};
}

}  // namespace lazy::kernels::test
