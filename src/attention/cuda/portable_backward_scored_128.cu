#include "attention/cuda/portable_backward.cuh"

namespace lazy::kernels::cuda {
void portable_backward_scored_128(const Params& p, int partial_step, cudaStream_t stream) {
  if (p.normalizer == Normalizer::sigmoid)
    return portable::run_backward<128, portable::Form::sigmoid>(p, partial_step, stream);
  portable::run_backward<128, portable::Form::sparse>(p, partial_step, stream);
}
}  // namespace lazy::kernels::cuda
