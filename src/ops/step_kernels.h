// Functions for decode steps that the CUDA library provides in addition to the operators. Only this program calls them.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>

#include "ops/few_rows.h"
#include "ops/recorder.h"
#include "ops/recurrence_step.h"
#include "ops/rope_to_pages.h"
#include "ops/sample_tokens.h"
#include "ops/step_layers.h"

namespace lazy::ops {

struct StepKernels {
  at::Tensor (*few_rows)(const FewRowsInput& input, const at::Tensor& W, bool swiglu, bool wide);
  GatheredKeys (*rope_to_pages)(const PageWrite& write, const at::Tensor& sources);  // without `sources`: no gather
  at::Tensor (*few_rows_to_pages)(const FewRowsInput& input, const at::Tensor& W, const PagePlaces& to);
  std::optional<at::Tensor> (*step_layers)(const StepLayers& in);
  void (*sample_tokens)(const SampleInputs& inputs);
  void (*pinned_copy)(const at::Tensor& to, const at::Tensor& from);
  std::pair<at::Tensor, at::Tensor> (*recurrence_step)(const LinearRecurrence& in);
  std::pair<at::Tensor, at::Tensor> (*convolution_step)(const ConvolutionStep& in);
  std::unique_ptr<Recorder> (*make_recorder)();
};
const StepKernels* step_kernels();  // see CudaLibrary; null until the library is loaded

}  // namespace lazy::ops
