#include "run_cuda.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <stdexcept>

#include "../device.h"

namespace lazy::kernels::test {

namespace {

// A buffer in host memory, as in the CPU tests, together with a copy of it in device memory.
class Mirror {
 public:
  Mirror(const Tensor& like, const Shape& s)
      : buffer_(like, s.dtype, s.layout),
        bytes_((like.data.size() * (s.layout == Layout::strided_dims ? 2 : 1)) * (s.dtype == DType::f32 ? 4 : 2)),
        memory_(bytes_) {}
  void fill(const Tensor& from) {
    buffer_.fill(from);
    memory_.write(buffer_.view().data, bytes_);
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
    memory_.read(buffer_.view().data);
    return buffer_.read();
  }

 private:
  Buffer buffer_;
  size_t bytes_;
  DeviceMemory memory_;
};

struct Floats {
  explicit Floats(const std::vector<double>& x) : size(x.size()), memory(size * 4) {
    const std::vector<float> narrow(x.begin(), x.end());
    memory.write(narrow.data(), size * 4);
  }
  explicit Floats(size_t n) : size(n), memory(n * 4) {}
  float* get() const { return size ? memory.get<float>() : nullptr; }
  std::vector<double> read() const {
    std::vector<float> x(size);
    memory.read(x.data());
    return {x.begin(), x.end()};
  }
  size_t size;
  DeviceMemory memory;
};

}  // namespace

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::string why_no_gpu() { return "no NVIDIA GPU"; }

CudaRun& current_run() {
  static CudaRun run;
  return run;
}

Results run_cuda(const Shape& s, const Inputs& in) {
  Problem p = make_problem(s);
  const DeviceMemory cu_q(s.cu_q.data(), s.cu_q.size() * 4), cu_k(s.cu_k.data(), s.cu_k.size() * 4);
  if (!s.cu_q.empty()) {
    p.cu_seqlens_q = cu_q.get<int32_t>();
    p.cu_seqlens_k = cu_k.get<int32_t>();
  }
  Mirror q(in.q, s), k(in.k, s), v(in.v, s), d_out(in.d_out, s), out(in.d_out, s), alive_sum(in.d_out, s), d_q(in.q, s),
      d_k(in.k, s), d_v(in.v, s);
  q.fill(in.q);
  k.fill(in.k);
  v.fill(in.v);
  d_out.fill(in.d_out);
  const Floats bias(in.distance_bias), tau(in.tau), sink(in.sink), slopes(in.alibi_slopes);
  const size_t rows = s.batch * s.heads * s.q_length;
  const Floats lse(rows), stats(3 * rows), scores(current_run().score_stats ? 2 * rows : 0), d_bias(bias.size),
      d_tau(tau.size), d_sink(sink.size), d_slopes(slopes.size);
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
  f.score_stats = scores.get();
  Backward<float> b;
  fill(b);
  if (current_run().alive_sum && writes_alive_sum_cuda(p, call)) {
    f.alive_sum = alive_sum.view();
    b.alive_sum = alive_sum.const_view();
  }
  forward_cuda(p, f, call);
  if (current_run().stats_apart) {
    f.stats = f.score_stats = nullptr;
    forward_cuda(p, f, call);
  }
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
  if (const Results* whole = current_run().whole) {
    b.d_sink = nullptr;
    out.fill(whole->out);
    const std::vector<float> of_whole(whole->lse.begin(), whole->lse.end());
    lse.memory.write(of_whole.data(), of_whole.size() * 4);
    if (!reads_rows_from_out_cuda(p, b, call))
      throw std::logic_error("the kernel does not compute row sums from out and lse");
  }
  const DeviceMemory workspace(backward_workspace_cuda(p, call));
  call.workspace = workspace.get();
  if (current_run().backward) backward_cuda(p, b, call);
  synchronize_device();
  return {out.read(),    d_q.read(),   d_k.read(),    d_v.read(),      lse.read(),   stats.read(),
          d_bias.read(), d_tau.read(), d_sink.read(), d_slopes.read(), scores.read()};
}

void run_decode_cuda(const Problem& p, const Decode<float>& host, const CacheSize& cache, const DecodeBytes& bytes,
                     CudaKernel kernel) {
  std::deque<DeviceMemory> memory;
  auto copy = [&]<typename T>(T*& pointer, size_t size) {
    if (pointer) pointer = static_cast<T*>(memory.emplace_back(pointer, size).get());
  };
  const auto batch = static_cast<size_t>(p.batch), heads = static_cast<size_t>(p.heads);
  const size_t rows = batch * heads * static_cast<size_t>(p.q_length);
  Decode<float> device = host;
  copy(device.q.data, bytes.q);
  copy(device.k.data, bytes.k);
  copy(device.v.data, bytes.v);
  copy(device.lengths, 8 * batch);
  copy(device.block_table, 8 * batch * static_cast<size_t>(host.table_width));
  copy(device.visible_counts, 8 * batch);
  copy(device.distance_bias, 4 * heads * static_cast<size_t>(p.bias_window));
  copy(device.tau, 4 * heads);
  copy(device.sink, 4 * heads);
  copy(device.alibi_slopes, 4 * heads);
  // Allocates device memory for the outputs and for a workspace. All of it is initialized to NaN.
  copy(device.out.data, bytes.out);
  const DeviceMemory& out = memory.back();
  const DeviceMemory lse(4 * rows), stats(12 * rows), scores(8 * rows), workspace(decode_workspace_cuda(p, cache));
  if (host.lse) device.lse = lse.get<float>();
  if (host.stats) device.stats = stats.get<float>();
  if (host.score_stats) device.score_stats = scores.get<float>();
  CudaCall call;
  call.workspace = workspace.get();
  call.kernel = kernel;
  decode_cuda(p, device, cache, call);
  synchronize_device();
  out.read(host.out.data);
  if (host.lse) lse.read(host.lse);
  if (host.stats) stats.read(host.stats);
  if (host.score_stats) scores.read(host.score_stats);
}

namespace {

void ok(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  ok(cudaMalloc(&data_, bytes + 256));
  ok(cudaMemset(data_, 0xFF, bytes + 256));
}
DeviceMemory::DeviceMemory(const void* from, size_t bytes) : DeviceMemory(bytes) { write(from, bytes); }
DeviceMemory::~DeviceMemory() { cudaFree(data_); }
void DeviceMemory::write(const void* from, size_t bytes) const {
  ok(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
}
void DeviceMemory::read(void* to) const { ok(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost)); }
void synchronize_device() { ok(cudaDeviceSynchronize()); }

}  // namespace lazy::kernels::test
