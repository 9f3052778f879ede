// Rebinds the memory of a tensor storage, so that sharded and offloaded weights can be allocated and freed. All tensors
// on the storage, including those saved by autograd, see the new memory; their version counter does not change.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace lazy {

void release_storage(const c10::Storage& storage);
// Points `storage` at `numel` elements of `whole` from `begin` on. The storage keeps `whole` alive.
void bind_storage(const c10::Storage& storage, const at::Tensor& whole, int64_t begin, int64_t numel);

// Returns freed heap memory to the operating system (malloc_trim): glibc keeps free blocks between live ones.
void return_free_memory();

}  // namespace lazy
