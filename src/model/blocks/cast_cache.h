// A weight in the computing precision, cast again only after the master has changed.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// Not thread-safe. The result carries no gradient: whoever computes with it gives the gradient to the master.
class CastCache {
 public:
  at::Tensor get(const at::Tensor& master, at::ScalarType dtype);
  // Memory for the copy in `dtype`, of no content yet. From here on `get` gives it whatever becomes of the master: the
  // caller keeps it up to date.
  at::Tensor place(const at::Tensor& master, at::ScalarType dtype);

 private:
  at::Tensor cast_;
  int64_t version_ = -1;
  bool placed_ = false;
};

}  // namespace lazy
