// lazy::decode on NVIDIA GPUs: fills the kernel arguments and launches the kernel on the current stream. Lengths and
// block table remain on the device.
#include "lazy/decode_step_cuda.h"
#include "ops/attention_pointers.h"
#include "ops/cuda_stream.h"
#include "ops/decode_kernels.h"
#include "ops/forced_kernel.h"
#include "ops/library.h"

namespace lazy::ops {

namespace {

AttentionOutputs decode_cuda(LAZY_DECODE_PARAMETERS) {
  const OptionalTensor none;
  const AttentionArguments a LAZY_DECODE_PACK(none);
  check_decode(a, cache_lengths, block_table, visible_count);
  if (reference_is_forced(a)) {
    return decode_by_reference(q, k_cache, v_cache, cache_lengths, distance_bias, tau, sink, block_table, visible_count,
                               alibi_slopes, normalizer, offset, sigmoid_bias, scale, softcap, causal, window,
                               return_stats, invariant);
  }
  const DeviceGuard guard(q);
  const DecodeNumbers numbers(cache_lengths, block_table, visible_count);
  at::Tensor cu_q, cu_k;
  const kernels::Problem p = attention_problem(a, cu_q, cu_k);
  const int64_t pages = a.paged ? numbers.table.size(1) : 1;  // maximum number of pages per sequence
  const kernels::CacheSize cache{pages * k_cache.size(1), k_cache.size(0)};
  kernels::CudaCall call;
  call.stream = current_stream();
  // All other kernel names that LAZY_KERNEL accepts apply only to lazy::attention.
  if (forced_kernel() == "plain") call.kernel = kernels::CudaKernel::plain;
  const std::string unmet = kernels::unmet_condition_decode_cuda(p, cache, call.kernel);
  TORCH_CHECK(unmet.empty(), "lazy::decode: ", unmet);
  AttentionOutputs outputs = empty_outputs(a, return_stats);
  auto& [out, lse, stats] = outputs;
  InputPointers<float, kernels::Decode<float>> filled(a);
  numbers.set(filled.arguments, k_cache);
  set_outputs<float>(filled.arguments, out, lse, stats);
  const size_t bytes =
      invariant ? kernels::decode_step_workspace_cuda(p, cache) : kernels::decode_workspace_cuda(p, cache);
  const at::Tensor workspace = at::empty({static_cast<int64_t>(bytes)}, q.options().dtype(at::kByte));
  call.workspace = workspace.mutable_data_ptr();
  (invariant ? kernels::decode_step_cuda : kernels::decode_cuda)(p, filled.arguments, cache, call);
  return outputs;
}

}  // namespace

LAZY_KERNELS(CUDA, m) { m.impl("decode", LAZY_KERNEL(decode_cuda)); }

}  // namespace lazy::ops
