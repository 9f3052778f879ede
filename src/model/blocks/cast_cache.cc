#include "model/blocks/cast_cache.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor CastCache::get(const at::Tensor& master, at::ScalarType dtype) {
  if (master.scalar_type() == dtype) return master.detach();
  if (placed_ && cast_.scalar_type() == dtype) return cast_;
  const auto version = static_cast<int64_t>(master._version());
  if (!cast_.defined() || cast_.scalar_type() != dtype || version_ != version) {
    cast_ = master.detach().to(dtype);
    version_ = version;
    placed_ = false;
  }
  return cast_;
}

at::Tensor CastCache::place(const at::Tensor& master, at::ScalarType dtype) {
  cast_ = at::empty(master.sizes(), master.options().dtype(dtype).requires_grad(false));
  placed_ = true;
  return cast_;
}

}  // namespace lazy
