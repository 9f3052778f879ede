#include "model/blocks/storage.h"

#include <ATen/ATen.h>
#include <malloc.h>

namespace lazy {
namespace {

void put(const c10::Storage& storage, c10::DataPtr memory, size_t bytes) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(memory));
  impl->set_nbytes(bytes);
}

}  // namespace

void release_storage(const c10::Storage& storage) { put(storage, {nullptr, storage.device()}, 0); }

void return_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void bind_storage(const c10::Storage& storage, const at::Tensor& whole, int64_t begin, int64_t numel) {
  const auto element = static_cast<int64_t>(whole.element_size());
  char* const data = static_cast<char*>(whole.mutable_data_ptr()) + begin * element;
  put(storage, {data, new at::Tensor(whole), [](void* held) { delete static_cast<at::Tensor*>(held); }, whole.device()},
      static_cast<size_t>(numel * element));
}

}  // namespace lazy
