// Detects tensors that are adjacent slices of one tensor.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Returns a view of the concatenation of `parts` along `axis` if the parts are adjacent in memory, such as slices of
// one tensor; otherwise an undefined tensor. The parts may differ only in their size along `axis`.
inline at::Tensor try_concat_view(at::TensorList parts, int64_t axis) {
  const at::Tensor& first = parts[0];
  int64_t size = 0;
  for (const at::Tensor& part : parts) {
    if (!part.defined() || !part.is_alias_of(first) || part.scalar_type() != first.scalar_type() ||
        part.strides() != first.strides() ||
        part.storage_offset() != first.storage_offset() + size * first.stride(axis)) {
      return {};
    }
    size += part.size(axis);
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[static_cast<size_t>(axis)] = size;
  return first.as_strided(sizes, first.strides());
}

}  // namespace lazy::ops
