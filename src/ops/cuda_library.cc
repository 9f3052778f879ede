#include "ops/cuda_library.h"

namespace lazy::ops {

CudaLibrary& cuda_library() {
  static CudaLibrary library;
  return library;
}

}  // namespace lazy::ops
