#include "eval/batch.h"

#include <ATen/ATen.h>

namespace lazy::eval {
namespace {

// On the host, where `device` can fetch it while the host goes on.
template <typename T>
at::Tensor on_host(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return host;
}

at::Tensor tensor(const std::vector<int64_t>& values, at::Device device) {
  const at::Tensor host = on_host(values, at::kLong, device);
  return device.is_cuda() ? host.to(device, /*non_blocking=*/true) : host;
}

}  // namespace

Batch lay_out(const std::vector<Window>& windows, std::span<const PrefixGroup> groups, at::Device device) {
  std::vector<int64_t> ids, positions, keys, rows, labels;
  std::vector<int32_t> begin_q{0}, begin_k{0};
  bool shares = false;
  Batch batch;
  batch.first = groups.front().first;
  batch.begins.push_back(0);
  // A sequence of input[from ...], whose keys are `shared` tokens from `shared_begin` on and its own.
  const auto append = [&](const std::vector<int32_t>& input, int64_t from, int64_t to, int64_t shared_begin) {
    for (int64_t i = 0; i < from; ++i) keys.push_back(shared_begin + i);
    for (int64_t i = from; i < to; ++i) {
      keys.push_back(static_cast<int64_t>(ids.size()));
      ids.push_back(input[static_cast<size_t>(i)]);
      positions.push_back(i);
    }
    begin_q.push_back(static_cast<int32_t>(ids.size()));
    begin_k.push_back(static_cast<int32_t>(keys.size()));
  };
  for (const PrefixGroup& group : groups) {
    const auto shared_begin = static_cast<int64_t>(ids.size());
    if (group.shared > 0) append(windows[group.first].input, 0, group.shared, 0);
    for (size_t w = group.first; w < group.first + group.count; ++w) {
      const Window& window = windows[w];
      const auto size = static_cast<int64_t>(window.input.size()), own_begin = static_cast<int64_t>(ids.size());
      batch.tokens.longest = std::max(batch.tokens.longest, size);
      if (size > group.shared) {
        append(window.input, group.shared, size, shared_begin);
        shares |= group.shared > 0;
      }
      for (int64_t t = size - static_cast<int64_t>(window.targets.size()); t < size; ++t) {
        rows.push_back(t < group.shared ? shared_begin + t : own_begin + t - group.shared);
      }
      labels.insert(labels.end(), window.targets.begin(), window.targets.end());
      batch.begins.push_back(static_cast<int64_t>(rows.size()));
    }
  }
  batch.tokens.ids = tensor(ids, device);
  batch.tokens.positions = tensor(positions, device);
  batch.tokens.cu_seqlens_q = on_host(begin_q, at::kInt, device);  // the operator checks them where that costs no wait
  batch.tokens.cu_seqlens_k = on_host(begin_k, at::kInt, device);
  if (shares) batch.tokens.keys = tensor(keys, device);
  batch.rows = tensor(rows, device);
  batch.labels = tensor(labels, device);
  return batch;
}

}  // namespace lazy::eval
