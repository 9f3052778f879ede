// Replaces the files in cuda/ in builds without CUDA kernels.
#include <stdexcept>

#include "cuda/run_cuda.h"

namespace lazy::kernels::test {

bool has_gpu() { return false; }
std::string why_no_gpu() { return "this build has no CUDA kernels"; }
Results run_cuda(const Shape&, const Inputs&) { throw std::logic_error(why_no_gpu()); }
void run_decode_cuda(const Problem&, const Decode<float>&, const CacheSize&, const DecodeBytes&, CudaKernel) {
  throw std::logic_error(why_no_gpu());
}

}  // namespace lazy::kernels::test
