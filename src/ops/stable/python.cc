// Functions without tensor arguments that Python calls through ctypes.
#include "ops/attention_arguments.h"

// Returns 1 if lazy::attention_forward saves alive_sum for the backward pass on the current GPU, otherwise 0. The fake
// kernel in Python needs this. `type` is "float16" or "bfloat16".
extern "C" int lazy_keeps_alive_sum(int64_t head_dim, int64_t value_dim, const char* type, const char* normalizer,
                                    int causal, int64_t window, int64_t bias_window, int alibi, double softcap,
                                    int deterministic) {
  using namespace lazy;
  const auto found = kernels::normalizer_from_name(normalizer);
  if (!found) return 0;  // unknown normalizer: the attention operator reports the error
  kernels::Problem p;
  p.head_dim = head_dim;
  p.value_dim = value_dim;
  p.dtype = std::string_view(type) == "float16" ? kernels::DType::f16 : kernels::DType::bf16;
  p.normalizer = *found;
  p.causal = causal;
  p.window = window;
  p.bias_window = bias_window;
  p.alibi = alibi;
  p.softcap = softcap;
  return ops::keeps_alive_sum(p, deterministic);
}
