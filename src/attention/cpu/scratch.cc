#include "attention/cpu/scratch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace lazy::kernels::cpu {

constexpr size_t kHugePage = size_t{2} << 20, kKeep = size_t{64} << 20;

Scratch::~Scratch() { release(); }

void Scratch::release() {
  std::free(data_);
  data_ = nullptr;
  bytes_ = 0;
}

float* Scratch::get(size_t count) {
  const size_t bytes = count * sizeof(float);
  if (bytes > bytes_) {
    release();
    const size_t alignment = bytes >= kHugePage ? kHugePage : 4096;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<float*>(std::aligned_alloc(alignment, rounded));
    if (!data_) throw std::bad_alloc();
    bytes_ = rounded;
#ifdef MADV_HUGEPAGE
    if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
  }
  return data_;
}

void Scratch::trim() {
  if (bytes_ > kKeep) release();
}

}  // namespace lazy::kernels::cpu
