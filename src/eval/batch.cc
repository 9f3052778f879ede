#include "eval/batch.h"

#include <algorithm>

#include "model/blocks/host_tensor.h"

namespace lazy::eval {

std::vector<PrefixGroup> group_by_prefix(const std::vector<Window>& windows) {
  std::vector<PrefixGroup> groups;
  for (size_t first = 0; first < windows.size();) {
    const std::vector<int32_t>& head = windows[first].input;
    auto shared = static_cast<int64_t>(head.size());  // length of the common prefix of the group so far
    size_t count = 1;
    for (; first + count < windows.size(); ++count) {
      const std::vector<int32_t>& next = windows[first + count].input;
      const auto common =
          std::mismatch(head.begin(), head.begin() + shared, next.begin(), next.end()).first - head.begin();
      // A group of `count` windows saves the computation of (count - 1) * shared tokens. A further window joins the
      // group only if the number of saved tokens increases.
      if (common * static_cast<int64_t>(count) <= shared * static_cast<int64_t>(count - 1)) break;
      shared = common;
    }
    PrefixGroup group{first, count, count == 1 ? 0 : shared, 0};
    group.computed = group.shared;
    for (size_t i = first; i < first + count; ++i)
      group.computed += static_cast<int64_t>(windows[i].input.size()) - group.shared;
    groups.push_back(group);
    first += count;
  }
  return groups;
}

std::vector<PrefixGroup> group_contained(const std::vector<Window>& windows) {
  std::vector<PrefixGroup> groups;
  for (size_t first = 0; first < windows.size(); first += groups.back().count) {
    const std::vector<int32_t>& head = windows[first].input;
    const auto contained = [&](const Window& w) {
      return w.input.size() <= head.size() && std::equal(w.input.begin(), w.input.end(), head.begin());
    };
    size_t count = 1;
    while (first + count < windows.size() && contained(windows[first + count])) ++count;
    const auto size = static_cast<int64_t>(head.size());
    groups.push_back({first, count, count == 1 ? 0 : size, size});
  }
  return groups;
}

std::vector<PrefixGroup> group_singly(const std::vector<Window>& windows) {
  std::vector<PrefixGroup> groups;
  for (size_t i = 0; i < windows.size(); ++i)
    groups.push_back({i, 1, 0, static_cast<int64_t>(windows[i].input.size())});
  return groups;
}

Batch pack(const std::vector<Window>& windows, std::span<const PrefixGroup> groups, at::Device device) {
  std::vector<int64_t> ids, positions, keys, rows, labels;
  std::vector<int32_t> begin_q{0}, begin_k{0};
  bool shares = false;
  Batch batch;
  batch.first = groups.front().first;
  batch.begins.push_back(0);
  // Adds the tokens input[from], ..., input[to - 1] of a window as a sequence. Their queries attend to the `from`
  // shared prefix tokens, which start at row `shared_begin` of the batch, and to the tokens of the sequence.
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
  batch.tokens.ids = on_device(ids, device);
  batch.tokens.positions = on_device(positions, device);
  batch.tokens.cu_seqlens_q =
      // This tensor stays on the host, so that the model can check its values without synchronization with the GPU.
      on_host(begin_q, at::kInt, device);
  batch.tokens.cu_seqlens_k = on_host(begin_k, at::kInt, device);
  if (shares) batch.tokens.keys = on_device(keys, device);
  batch.rows = on_device(rows, device);
  batch.labels = on_device(labels, device);
  return batch;
}

}  // namespace lazy::eval
