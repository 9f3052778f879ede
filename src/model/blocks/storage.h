// Rebinds the memory of a tensor storage, so that sharded and offloaded weights can be allocated and freed. All tensors
// that share the storage, including tensors saved by autograd, see the new memory. Their version counters do not
// change.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace lazy {

void release_storage(const c10::Storage& storage);
// Makes `storage` refer to `numel` elements of `whole`, starting at element `begin`. The storage then owns a reference
// to the memory of `whole`.
void bind_storage(const c10::Storage& storage, const at::Tensor& whole, int64_t begin, int64_t numel);

// Returns freed heap memory to the operating system (malloc_trim). Without this call, glibc retains freed blocks that
// are located between blocks in use.
void return_free_memory();

}  // namespace lazy
