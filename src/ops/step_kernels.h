// Functions for decode steps that the CUDA library provides in addition to the operators. Only the C++ program calls
// them, not the Python package.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>

#include "ops/fused_decode_layers.h"
#include "ops/kv_cache_write.h"
#include "ops/recorder.h"
#include "ops/recurrence_step.h"
#include "ops/sample_tokens.h"
#include "ops/skinny_gemm.h"

namespace lazy::ops {

struct StepKernels {
  at::Tensor (*skinny_gemm)(const SkinnyGemmInput& input, const at::Tensor& W, bool swiglu, bool wide);
  GatheredKeys (*kv_cache_write)(const PageWrite& write, const at::Tensor& sources);  // undefined `sources`: no gather
  at::Tensor (*skinny_gemm_kv_cache_write)(const SkinnyGemmInput& input, const at::Tensor& W, const PagePlaces& to);
  std::optional<at::Tensor> (*fused_decode_layers)(const FusedDecodeLayers& in);
  void (*sample_tokens)(const SampleInputs& inputs);
  void (*pinned_copy)(const at::Tensor& to, const at::Tensor& from);
  std::pair<at::Tensor, at::Tensor> (*recurrence_step)(const LinearRecurrence& in);
  std::pair<at::Tensor, at::Tensor> (*convolution_step)(const ConvolutionStep& in);
  std::unique_ptr<Recorder> (*make_recorder)();
};
const StepKernels* step_kernels();  // null until the CUDA library is loaded (CudaLibrary)

}  // namespace lazy::ops
