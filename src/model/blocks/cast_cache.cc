#include "model/blocks/cast_cache.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor CastCache::get(const at::Tensor& master, at::ScalarType dtype) {
  if (master.scalar_type() == dtype) return master.detach();
  const auto version = static_cast<int64_t>(master._version());
  if (!cast_.defined() || cast_.scalar_type() != dtype || version_ != version) {
    cast_ = master.detach().to(dtype);
    version_ = version;
  }
  return cast_;
}

}  // namespace lazy
