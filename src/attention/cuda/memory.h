// Tensors and workspaces as the CUDA kernels receive them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::kernels::cuda {

// Strides in elements, 64 bits: a tensor may span more than 2^31 elements.
struct Tensor {
  void* data = nullptr;
  int64_t batch = 0, token = 0, head = 0, dim = 1;
};

template <typename View>
Tensor tensor(const View& view) {
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.batch, view.token, view.head, view.dim};
}

// Whether a kernel may move 16 bytes of it (8 elements) at a time.
inline bool aligned(const Tensor& x) {
  return !x.data || (x.dim == 1 && x.token % 8 == 0 && x.head % 8 == 0 && x.batch % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
}

// Hands out pieces of the workspace; with a null base it only measures.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T>
  void take(T*& piece, int64_t count) {
    piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace lazy::kernels::cuda
