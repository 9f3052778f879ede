// Memory that comes and goes under tensors that stay: every tensor on a storage, also one that autograd has saved, has
// its memory here or there, at the same version.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace lazy {

void release_storage(const c10::Storage& storage);
// Memory of `numel` elements from `begin` within `whole`, which lives as long.
void bind_storage(const c10::Storage& storage, const at::Tensor& whole, int64_t begin, int64_t numel);

// What is free goes back to the system: the C library keeps holes between smaller things that stay.
void return_free_memory();

}  // namespace lazy
