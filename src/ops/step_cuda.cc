// Launches the CUDA kernels of decode steps, and records CUDA graphs.
#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/attention_pointers.h"
#include "ops/cuda/step.h"
#include "ops/cuda_library.h"
#include "ops/decode_kernels.h"
#include "ops/fused.h"
#include "ops/rope_cuda.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

namespace {

// Kernels load 16 bytes at a time. Tensors without this alignment, such as views with an odd offset, are copied.
bool aligned(const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; }
at::Tensor on_16_bytes(const at::Tensor& t) {
  return !t.defined() || aligned(t) ? t : t.clone(at::MemoryFormat::Contiguous);
}

const float* pointer(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }
OptionalTensor optional(const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : OptionalTensor(); }

// The arguments of the skinny GEMM kernel except the output pointers, and the tensors to which they point.
struct SkinnyGemmCall {
  const c10::cuda::CUDAGuard guard;
  const at::Tensor x, weights, norm_weight, add;
  at::Tensor scaled_x, scales;
  cuda::SkinnyGemm a;

  SkinnyGemmCall(const SkinnyGemmInput& in, const at::Tensor& W)
      : guard(in.x.device()),
        x(on_16_bytes(in.x.stride(1) == 1 && in.x.stride(0) % 8 == 0 ? in.x : in.x.contiguous())),
        weights(on_16_bytes(W)),
        norm_weight(on_16_bytes(in.norm_weight)),
        add(on_16_bytes(in.add.defined() ? in.add.contiguous() : in.add)),
        a{.type = row_type("skinny_gemm", x)} {
    a.x = x.const_data_ptr();
    a.W = weights.const_data_ptr();
    a.x_stride = x.stride(0);
    a.rows = x.size(0);
    a.in = x.size(1);
    if (add.defined()) a.add = add.const_data_ptr();
    if (in.next_W.defined()) {
      a.next_W = in.next_W.const_data_ptr();
      a.next_bytes = static_cast<int64_t>(in.next_W.nbytes());
    }
    if (norm_weight.defined()) a.norm_weight = norm_weight.const_data_ptr<float>();
    if (a.rows > cuda::kMaxUngroupedRows) {
      scaled_x = at::empty({(a.rows + 7) / 8 * 8, a.in}, x.options());
      scales = at::empty({a.rows}, x.options().dtype(at::kFloat));
      a.scaled_x = scaled_x.mutable_data_ptr();
      a.scales = scales.mutable_data_ptr<float>();
    }
    a.eps = static_cast<float>(in.eps);
  }
};

at::Tensor skinny_gemm(const SkinnyGemmInput& in, const at::Tensor& W, bool swiglu, bool wide) {
  SkinnyGemmCall call(in, W);
  cuda::SkinnyGemm& a = call.a;
  a.out = W.size(0) / (swiglu ? 2 : 1);
  at::Tensor y = at::empty({a.rows, a.out}, wide ? in.x.options().dtype(at::kFloat) : in.x.options());
  a.swiglu = swiglu;
  a.wide = wide;
  a.y = y.mutable_data_ptr();
  cuda::skinny_gemm(a, c10::cuda::getCurrentCUDAStream());
  return y;
}

// Returns the kernel arguments for the pages. The kernel writes the rotated queries to q (batch, length, heads,
// head_dim).
cuda::PageTarget page_target(const PagePlaces& to, const at::Tensor& positions, const at::Tensor& q) {
  cuda::PageTarget a{};
  a.q = q.mutable_data_ptr();
  a.keys = to.keys.mutable_data_ptr();
  a.values = to.values.mutable_data_ptr();
  a.positions = positions.const_data_ptr<int64_t>();
  a.slots = to.slots.const_data_ptr<int64_t>();
  a.heads = q.size(2);
  a.kv_heads = to.keys.size(2);
  a.dim = q.size(3);
  a.interleaved = to.rope.interleaved;
  if (to.rope_base > 0) {
    const RopeArguments rope{to.rope_base, 0, to.rope.rotary_dim < 0 ? a.dim : to.rope.rotary_dim, to.rope.interleaved,
                             to.rope.scaling};
    check_rope(q, OptionalTensor(to.rope.positions), rope);
    a.table = rope_table(rope, std::min(to.longest, kMaxRopePositions), q.get_device());
  }
  return a;
}

at::Tensor skinny_gemm_kv_cache_write(const SkinnyGemmInput& in, const at::Tensor& W, const PagePlaces& to) {
  SkinnyGemmCall call(in, W);
  const at::Tensor positions = to.rope.positions.contiguous();
  const int64_t kv_heads = to.keys.size(2), dim = to.keys.size(3);
  at::Tensor q = at::empty({positions.size(0), positions.size(1), W.size(0) / dim - 2 * kv_heads, dim}, in.x.options());
  call.a.out = W.size(0) / 2;
  call.a.pages = page_target(to, positions, q);
  cuda::skinny_gemm(call.a, c10::cuda::getCurrentCUDAStream());
  return q;
}

GatheredKeys kv_cache_write(const PageWrite& w, const at::Tensor& sources) {
  const c10::cuda::CUDAGuard guard(w.q.device());
  const auto last_contiguous = [](const at::Tensor& t) { return t.stride(3) == 1 ? t : t.contiguous(); };
  // Merges batch and length into one token axis.
  const auto tokens = [&](const at::Tensor& t) { return last_contiguous(t).flatten(0, 1); };
  const at::Tensor q = tokens(w.q), k = tokens(w.k), v = tokens(w.v), positions = w.rope.positions.contiguous();
  GatheredKeys out{.q = at::empty(w.q.sizes(), w.q.options()), .keys = {}, .values = {}};
  cuda::KvCacheWrite a{.type = row_type("kv_cache_write", q)};
  a.q = q.const_data_ptr();
  a.k = k.const_data_ptr();
  a.v = v.const_data_ptr();
  a.q_token = q.stride(0);
  a.q_head = q.stride(1);
  a.k_token = k.stride(0);
  a.k_head = k.stride(1);
  a.v_token = v.stride(0);
  a.v_head = v.stride(1);
  a.tokens = q.size(0);
  a.to = page_target(w, positions, out.q);
  if (sources.defined()) {
    out.keys = at::empty({sources.size(0), a.to.kv_heads, a.to.dim}, w.k.options());
    out.values = at::empty_like(out.keys);
    a.sources = sources.const_data_ptr<int64_t>();
    a.rows = sources.size(0);
    a.gathered_keys = out.keys.mutable_data_ptr();
    a.gathered_values = out.values.mutable_data_ptr();
  }
  cuda::kv_cache_write(a, c10::cuda::getCurrentCUDAStream());
  return out;
}

std::optional<at::Tensor> fused_decode_layers(const FusedDecodeLayers& in) {
  const c10::cuda::CUDAGuard guard(in.x.device());
  const FusedDecodeLayer& first = in.layers.front();
  const PagePlaces& pages = first.pages;
  const int64_t tokens = in.x.size(0), dim = pages.keys.size(3);
  const auto in_place = [](const at::Tensor& t, at::ScalarType type) {
    return !t.defined() || (t.scalar_type() == type && t.is_contiguous() && aligned(t));
  };
  const auto fits = [&](const FusedDecodeLayer& l) {
    const auto all = [&](at::ScalarType type, auto... tensors) { return (in_place(*tensors, type) && ...); };
    const AttentionTerms& a = l.attention;
    return all(at::kBFloat16, &l.qkv, &l.output, &l.gate_up, &l.down, &l.pages.keys, &l.pages.values) &&
           all(at::kFloat, &l.norm, &l.mlp_norm, &a.distance_bias, &a.tau, &a.options.sink, &a.options.alibi_slopes);
  };
  if (!in_place(in.x, at::kBFloat16) || !std::all_of(in.layers.begin(), in.layers.end(), fits)) return {};
  // A tensor with the shape of q, which is used only for the argument checks.
  const at::Tensor q = at::empty({tokens, 1, first.heads, dim}, in.x.options());
  const AttentionOptions& options = first.attention.options;
  const OptionalTensor none, bias = optional(first.attention.distance_bias), tau = optional(first.attention.tau),
                             sink = optional(options.sink), slopes = optional(options.alibi_slopes);
  const AttentionArguments arguments{q,
                                     pages.keys,
                                     pages.values,
                                     bias,
                                     tau,
                                     sink,
                                     slopes,
                                     options.normalizer,
                                     options.offset,
                                     options.sigmoid_bias,
                                     options.scale,
                                     options.softcap,
                                     options.causal,
                                     options.window,
                                     none,
                                     none,
                                     false,
                                     "decode",
                                     true};
  check_decode(arguments, in.lengths, OptionalTensor(in.block_table), none);
  const DecodeNumbers numbers(in.lengths, OptionalTensor(in.block_table), none);
  const at::Tensor positions = pages.rope.positions.contiguous();
  at::Tensor cu_q, cu_k;
  std::vector<cuda::FusedDecodeLayer> layers;
  for (const FusedDecodeLayer& l : in.layers) {
    const AttentionTerms& a = l.attention;
    layers.push_back({l.qkv.const_data_ptr(), l.output.const_data_ptr(), l.gate_up.const_data_ptr(),
                      l.down.const_data_ptr(), pointer(l.norm), pointer(l.mlp_norm), l.pages.keys.mutable_data_ptr(),
                      l.pages.values.mutable_data_ptr(), pointer(a.distance_bias), pointer(a.tau),
                      pointer(a.options.sink), pointer(a.options.alibi_slopes)});
  }
  cuda::FusedDecodeLayers p{};
  p.layers = layers.data();
  p.count = static_cast<int64_t>(layers.size());
  p.problem = attention_problem(arguments, cu_q, cu_k);
  numbers.set(p.attention, pages.keys);
  p.attention.distance_bias = layers.front().distance_bias;  // not read; non-null if the layers have a bias
  p.pages = pages.keys.size(0);
  p.to = page_target(pages, positions, q);
  p.hidden = in.x.size(1);
  p.inner = first.gate_up.size(0) / 2;
  p.eps = static_cast<float>(in.eps);
  p.x = in.x.const_data_ptr();
  if (!cuda::supports_fused_decode_layers(p)) return {};
  p.words = in.words->of(cuda::fused_decode_sync_words(p), in.x.device()).mutable_data_ptr();
  at::Tensor y = at::empty_like(in.x);
  p.y = y.mutable_data_ptr();
  cuda::fused_decode_layers(p, c10::cuda::getCurrentCUDAStream());
  return y;
}

void sample_tokens(const SampleInputs& in) {
  const c10::cuda::CUDAGuard guard(in.logits.device());
  cuda::SampleTokens a{};
  a.logits = in.logits.const_data_ptr<float>();
  a.numbers = in.numbers.const_data_ptr<int64_t>();
  a.slots = in.slots.const_data_ptr<int64_t>();
  if (in.counts.defined()) {
    a.counts = in.counts.mutable_data_ptr<int32_t>();
    a.bias = in.bias.const_data_ptr<float>();
  }
  a.last = in.last.mutable_data_ptr<int64_t>();
  a.tokens = in.tokens.mutable_data_ptr<int64_t>();
  a.rows = in.logits.size(0);
  a.vocabulary = in.logits.size(1);
  cuda::sample_tokens(a, c10::cuda::getCurrentCUDAStream());
}

void pinned_copy(const at::Tensor& to, const at::Tensor& from) {
  const at::Tensor &on_gpu = to.is_cuda() ? to : from, &host = to.is_cuda() ? from : to;
  const c10::cuda::CUDAGuard guard(on_gpu.device());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  cuda::pinned_copy({static_cast<uint64_t*>(to.mutable_data_ptr()), static_cast<const uint64_t*>(from.const_data_ptr()),
                     static_cast<int64_t>(to.nbytes() / 8)},
                    stream);
  // Tells the allocator of pinned memory not to reuse this memory before the kernel has finished.
  at::getHostAllocator(at::kCUDA)->record_event(host.mutable_data_ptr(), host.storage().data_ptr().get_context(),
                                                stream.unwrap());
}

static_assert(kMaxStepKeys == cuda::kMaxStepKeys);

at::Tensor numbers(const at::Tensor& t) { return t.defined() ? t.to(at::kFloat).contiguous() : t; }

std::pair<at::Tensor, at::Tensor> recurrence_step(const LinearRecurrence& in) {
  const c10::cuda::CUDAGuard guard(in.v.device());
  const auto rows = [](const at::Tensor& t) { return t.stride(3) == 1 ? t.select(1, 0) : t.select(1, 0).contiguous(); };
  const at::Tensor q = rows(in.q), k = rows(in.k), v = rows(in.v), log_decay = numbers(in.log_decay),
                   beta = numbers(in.beta), skip = numbers(in.skip), state = on_16_bytes(numbers(in.initial_state));
  cuda::RecurrenceStep a{.type = row_type("recurrence_step", v)};
  a.q = q.const_data_ptr();
  a.k = k.const_data_ptr();
  a.v = v.const_data_ptr();
  a.q_batch = q.stride(0);
  a.q_head = q.stride(1);
  a.k_batch = k.stride(0);
  a.k_head = k.stride(1);
  a.v_batch = v.stride(0);
  a.v_head = v.stride(1);
  a.log_decay = pointer(log_decay);
  a.constant_decay = log_decay.defined() && log_decay.dim() == 1;
  a.beta = pointer(beta);
  a.skip = pointer(skip);
  a.state = pointer(state);
  a.batch = v.size(0);
  a.heads = v.size(1);
  a.groups = q.size(1);
  a.key_dim = q.size(2);
  a.value_dim = v.size(2);
  a.scale = static_cast<float>(in.scale);
  a.delta = in.delta;
  at::Tensor out = at::empty(in.v.sizes(), in.v.options());
  at::Tensor next = at::empty({a.batch, a.heads, a.key_dim, a.value_dim}, in.v.options().dtype(at::kFloat));
  a.out = out.mutable_data_ptr();
  a.next_state = next.mutable_data_ptr<float>();
  cuda::recurrence_step(a, c10::cuda::getCurrentCUDAStream());
  return {out, next};
}

std::pair<at::Tensor, at::Tensor> convolution_step(const ConvolutionStep& in) {
  const c10::cuda::CUDAGuard guard(in.x.device());
  const at::Tensor x = in.x.stride(2) == 1 ? in.x : in.x.contiguous(), weight = numbers(in.weight),
                   bias = numbers(in.bias), past = in.past.contiguous();
  cuda::ConvolutionStep a{.type = row_type("convolution_step", x)};
  a.x = x.const_data_ptr();
  a.x_batch = x.stride(0);
  a.weight = pointer(weight);
  a.bias = pointer(bias);
  a.past = past.const_data_ptr();
  a.batch = x.size(0);
  a.channels = x.size(2);
  a.taps = weight.size(2);
  at::Tensor y = at::empty(x.sizes(), x.options()), next = at::empty(past.sizes(), past.options());
  a.y = y.mutable_data_ptr();
  a.next_past = next.mutable_data_ptr();
  cuda::convolution_step(a, c10::cuda::getCurrentCUDAStream());
  return {y, next};
}

// Records CUDA graphs. The graphs of one recorder share a memory pool, because they run one after the other. Other
// threads may use the device during a capture.
class GraphRecorder : public Recorder {
 public:
  std::function<void()> record(const std::function<void()>& work) override {
    auto graph = std::make_shared<at::cuda::CUDAGraph>();
    graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph->capture_end();
      } catch (const std::exception&) {  // ignored, because the error of `work` is rethrown below
      }
      throw;
    }
    graph->capture_end();
    return [graph] { graph->replay(); };
  }

 private:
  const at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
};

const StepKernels kKernels{skinny_gemm,
                           kv_cache_write,
                           skinny_gemm_kv_cache_write,
                           fused_decode_layers,
                           sample_tokens,
                           pinned_copy,
                           recurrence_step,
                           convolution_step,
                           []() -> std::unique_ptr<Recorder> { return std::make_unique<GraphRecorder>(); }};
const bool step_registered = [] {
  cuda_library().step_kernels = &kKernels;
  return true;
}();

}  // namespace

}  // namespace lazy::ops
