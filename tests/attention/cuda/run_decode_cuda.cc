#include "run_decode_cuda.h"

#include <deque>

#include "../device.h"

namespace lazy::kernels::test {

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
  // Outputs, and a workspace that is NaN at first.
  copy(device.out.data, bytes.out);
  const DeviceMemory& out = memory.back();
  const DeviceMemory lse(4 * rows), stats(12 * rows), workspace(decode_workspace_cuda(p, cache));
  if (host.lse) device.lse = lse.get<float>();
  if (host.stats) device.stats = stats.get<float>();
  CudaCall call;
  call.workspace = workspace.get();
  call.kernel = kernel;
  decode_cuda(p, device, cache, call);
  synchronize_device();
  out.read(host.out.data);
  if (host.lse) lse.read(host.lse);
  if (host.stats) stats.read(host.stats);
}

}  // namespace lazy::kernels::test
