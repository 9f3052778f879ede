#include "model/mixers/ttt_kernels.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "model/blocks/activation_budget.h"
#include "model/mixers/chunked_scan.h"

namespace lazy {

namespace {

using ops::FastWeightsKernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kDim = 64, kTokens = 16;

// The inputs of consecutive whole mini-batches, (batch, tokens, heads, ...), and the weights before the first of these
// mini-batches, (batch, heads, in, out).
struct MiniBatchSpan {
  at::Tensor q, k, v, rate, scale, norm_weight, norm_bias;
  TttWeights start;

  size_t layers() const { return start.W.size(); }
  int64_t hidden() const { return layers() == 1 ? 0 : start.W[0].size(-1); }
  int64_t chunks() const { return q.size(1) / kTokens; }
  int64_t states() const { return q.size(0) * q.size(2); }
  at::Tensor floats(at::IntArrayRef shape) const { return at::empty(shape, rate.options()); }
};

variable_list flatten(const TttWeights& w) {
  variable_list list;
  for (size_t n = 0; n < w.W.size(); ++n) list.push_back(w.W[n]), list.push_back(w.b[n]);
  return list;
}
TttWeights weights_of(variable_list::const_iterator from, variable_list::const_iterator to) {
  TttWeights w;
  for (; from != to; from += 2) w.W.push_back(*from), w.b.push_back(from[1]);
  return w;
}
constexpr std::ptrdiff_t kShared = 7;  // number of tensors in the list before the state: q to norm_bias
MiniBatchSpan span_of(variable_list::const_iterator from, variable_list::const_iterator to) {
  return {from[0], from[1], from[2], from[3], from[4], from[5], from[6], weights_of(from + kShared, to)};
}

TttWeights empty_like(const TttWeights& w) {
  TttWeights out;
  for (const at::Tensor& x : w.W) out.W.push_back(at::empty(x.sizes(), x.options()));
  for (const at::Tensor& x : w.b) out.b.push_back(at::empty(x.sizes(), x.options()));
  return out;
}

// The arguments of a kernel, together with the tensors that own the memory to which the arguments point.
class TttCall {
 public:
  TttCall(const MiniBatchSpan& s, bool for_backward) : layers_(s.layers()) {
    p.C = s.chunks(), p.heads = s.q.size(2), p.N = s.states(), p.H = s.hidden();
    p.bf16 = s.q.scalar_type() == at::kBFloat16, p.for_backward = for_backward;
    p.q = tokens(s.q), p.k = tokens(s.k), p.v = tokens(s.v), p.rate = as_it_lies(s.rate);
    p.scale = read(s.scale), p.norm_weight = read(s.norm_weight), p.norm_bias = read(s.norm_bias);
    const auto one = [](const at::Tensor& x) { return x.stride(0) == 0; };
    p.one_state = std::ranges::all_of(s.start.W, one) && std::ranges::all_of(s.start.b, one);
    for (size_t n = 0; n < layers_; ++n) {
      layer(n).W = read(p.one_state ? s.start.W[n].select(0, 0) : s.start.W[n]);
      layer(n).b = read(p.one_state ? s.start.b[n].select(0, 0) : s.start.b[n]);
    }
  }

  ops::TttLayer& layer(size_t n) { return n + 1 == layers_ ? p.last : p.first; }
  const float* read(const at::Tensor& x) {
    kept_.push_back(x.contiguous());
    if (!aligned(kept_.back())) kept_.back() = kept_.back().clone();
    return kept_.back().const_data_ptr<float>();
  }
  static float* write(const at::Tensor& x) { return x.mutable_data_ptr<float>(); }
  // Passes x to the kernel in its memory layout if its rows are aligned to 16 bytes, otherwise as a contiguous copy.
  ops::TttTokens tokens(const at::Tensor& x) {
    const bool rows = x.stride(3) == 1 && std::ranges::all_of(x.strides().slice(0, 3), [&](int64_t stride) {
                        return stride * static_cast<int64_t>(x.element_size()) % 16 == 0;
                      });
    return as_it_lies(rows && aligned(x) ? x : x.clone(at::MemoryFormat::Contiguous));
  }
  ops::TttTokens as_it_lies(const at::Tensor& x) {
    kept_.push_back(x);
    return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
  }
  void leaves_state(const TttWeights& after) {
    for (size_t n = 0; n < layers_; ++n) layer(n).W_end = write(after.W[n]), layer(n).b_end = write(after.b[n]);
  }

  ops::TttProblem p{};

 private:
  static bool aligned(const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; }

  size_t layers_;
  TensorList kept_;
};

// Splits a span into parts and saves the state between them. For one-layer models, the whole span is one part, because
// the inner gradients and the state after the part are small; they are saved for the backward pass. For two-layer
// models, the backward pass recomputes the activations of each part from the state before the part, unless the
// ActivationBudget of the forward pass has enough memory to keep the activations.
struct SequenceParts {
  int64_t length, most;

  SequenceParts(const MiniBatchSpan& s, bool for_backward)
      : length(s.q.size(1)), most(s.layers() == 1 || !for_backward ? length : kTokensPerCheckpoint) {}
  int64_t count() const { return (length + most - 1) / most; }
  at::Tensor tokens(const at::Tensor& x, int64_t n) const {
    return x.narrow(1, n * most, std::min(most, length - n * most));
  }
  MiniBatchSpan operator()(MiniBatchSpan s, int64_t n, const TttWeights& start) const {
    for (at::Tensor* x : {&s.q, &s.k, &s.v, &s.rate}) *x = tokens(*x, n);
    s.start = start;
    return s;
  }
};

const FastWeightsKernels& kernels_for(const MiniBatchSpan& s) {
  return *ops::ttt_kernels(s.q.device().type(), s.hidden());
}

at::Tensor inner_gradients(const MiniBatchSpan& part) {
  return part.floats({part.states(), part.chunks(), kTokens, kDim});
}

// The activations of a two-layer model that the forward pass saves for the backward pass.
struct Activations {
  static constexpr size_t kCount = 9;
  std::vector<at::Tensor> all;

  explicit Activations(const MiniBatchSpan& part) {
    for (const auto& shape : shapes(part)) all.push_back(part.floats(shape));
  }
  Activations(variable_list::const_iterator from, variable_list::const_iterator to) : all(from, to) {}
  static int64_t bytes(const MiniBatchSpan& part) {
    int64_t sum = 0;
    for (const auto& shape : shapes(part)) sum += static_cast<int64_t>(sizeof(float)) * c10::multiply_integers(shape);
    return sum;
  }
  void give(ops::TttProblem& p) const {
    float** const to[] = {&p.g, &p.y, &p.y_q, &p.z, &p.x, &p.t, &p.W_first, &p.W_last, &p.overlap};
    for (size_t n = 0; n < kCount; ++n) *to[n] = TttCall::write(all[n]);
  }

 private:
  static std::array<std::array<int64_t, 4>, kCount> shapes(const MiniBatchSpan& part) {
    const int64_t N = part.states(), C = part.chunks(), H = part.hidden();
    const std::array<int64_t, 4> narrow = {N, C, kTokens, kDim}, wide = {N, C, kTokens, H}, weights = {N, C, kDim, H};
    return {narrow, narrow, narrow, wide, wide, wide, weights, weights, {N, C, kTokens, kTokens}};
  }
};

struct TttNode : torch::autograd::Function<TttNode> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, bool last_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list all = inputs.vec();
    const MiniBatchSpan s = span_of(all.begin(), all.end());
    const c10::DeviceGuard device(s.q.device());
    const at::Tensor out = at::empty(s.q.sizes(), s.q.options());
    const bool one_layer = s.layers() == 1;
    const SequenceParts parts(s, /*for_backward=*/true);
    variable_list saved = all;
    at::Tensor g;
    TttWeights state = s.start;
    variable_list kept;  // activations of the first parts of the span, for as many parts as the budget allows
    ActivationBudget* budget = one_layer ? nullptr : ActivationBudget::current();
    for (int64_t n = 0; n < parts.count(); ++n) {
      const MiniBatchSpan part = parts(s, n, state);
      const bool leaves = n + 1 < parts.count() || one_layer || last_state;
      if (budget && !budget->take(Activations::bytes(part))) budget = nullptr;
      TttCall call(part, one_layer || budget);
      if (budget) {
        const Activations activations(part);
        activations.give(call.p);
        kept.insert(kept.end(), activations.all.begin(), activations.all.end());
      }
      call.p.out = call.as_it_lies(parts.tokens(out, n));
      if (one_layer) call.p.g = TttCall::write(g = inner_gradients(part));
      if (leaves) {
        call.leaves_state(state = empty_like(s.start));
        for (const at::Tensor& x : flatten(state)) saved.push_back(x);
      }
      kernels_for(s).ttt_forward(call.p);
    }
    if (one_layer) saved.push_back(g);
    saved.insert(saved.end(), kept.begin(), kept.end());
    context->saved_data["kept"] = static_cast<int64_t>(kept.size());
    context->save_for_backward(saved);
    context->saved_data["last_state"] = last_state;
    context->saved_data["layers"] = static_cast<int64_t>(s.layers());
    variable_list result = {out};
    if (last_state) {
      for (const at::Tensor& x : flatten(state)) result.push_back(x);
    }
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list saved = context->get_saved_variables();
    const bool last_state = context->saved_data["last_state"].toBool();
    const std::ptrdiff_t of_state = 2 * context->saved_data["layers"].toInt(), inputs = kShared + of_state;
    const MiniBatchSpan s = span_of(saved.begin(), saved.begin() + inputs);
    const c10::DeviceGuard device(s.q.device());
    const bool one_layer = s.layers() == 1;
    const SequenceParts parts(s, /*for_backward=*/true);
    // Returns the state before part n, which is the state after part n - 1.
    const auto state = [&](int64_t n) {
      const auto from = saved.begin() + inputs + (n - 1) * of_state;
      return n == 0 ? s.start : weights_of(from, from + of_state);
    };
    const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    const at::Tensor d_q = like(s.q), d_k = like(s.k), d_v = like(s.v), d_rate = like(s.rate);
    const auto for_each_state = [&](int64_t width) { return s.floats({parts.count(), s.states(), width}); };
    const at::Tensor d_scale = for_each_state(kTokens), d_weight = for_each_state(kDim), d_bias = for_each_state(kDim);
    variable_list d_state;
    for (std::ptrdiff_t n = 0; n < of_state; ++n) {
      const at::Tensor& start = saved[static_cast<size_t>(kShared + n)];
      d_state.push_back(last_state ? gradients[static_cast<size_t>(1 + n)].clone(at::MemoryFormat::Contiguous)
                                   : at::zeros(start.sizes(), start.options()));
    }
    const auto kept = saved.end() - context->saved_data["kept"].toInt();
    const auto is_kept = [&](int64_t n) {
      return n < (saved.end() - kept) / static_cast<int64_t>(Activations::kCount);
    };
    std::optional<Activations> again;
    if (!one_layer && !is_kept(parts.count() - 1)) again.emplace(parts(s, 0, s.start));
    for (int64_t n = parts.count() - 1; n >= 0; --n) {
      TttCall call(parts(s, n, state(n)), /*for_backward=*/true);
      ops::TttProblem& p = call.p;
      if (one_layer) {
        call.leaves_state(state(n + 1));
        p.g = TttCall::write(saved.back());
      } else if (is_kept(n)) {
        const auto from = kept + n * static_cast<std::ptrdiff_t>(Activations::kCount);
        Activations(from, from + Activations::kCount).give(p);
      } else {
        again->give(p);
        kernels_for(s).ttt_forward(p);
      }
      p.d_out = call.tokens(parts.tokens(gradients[0], n));
      p.d_q = call.as_it_lies(parts.tokens(d_q, n)), p.d_k = call.as_it_lies(parts.tokens(d_k, n));
      p.d_v = call.as_it_lies(parts.tokens(d_v, n)), p.d_rate = call.as_it_lies(parts.tokens(d_rate, n));
      p.d_scale = TttCall::write(d_scale[n]), p.d_norm_weight = TttCall::write(d_weight[n]);
      p.d_norm_bias = TttCall::write(d_bias[n]);
      for (size_t layer = 0; layer < s.layers(); ++layer) {
        call.layer(layer).d_W = TttCall::write(d_state[2 * layer]);
        call.layer(layer).d_b = TttCall::write(d_state[2 * layer + 1]);
      }
      kernels_for(s).ttt_backward(p);
    }
    const auto by_head = [&](const at::Tensor& x) { return x.view({-1, s.q.size(2), kDim}).sum(0); };
    variable_list out = {d_q, d_k, d_v, d_rate, d_scale.view({-1, kTokens}).sum(0), by_head(d_weight), by_head(d_bias)};
    out.insert(out.end(), d_state.begin(), d_state.end());
    out.emplace_back();  // undefined gradient for the argument last_state
    return out;
  }
};

struct PostNormNode : torch::autograd::Function<PostNormNode> {
  static ops::TttNorm problem(const at::Tensor& x, const at::Tensor& weight) {
    return {.rows = x.numel() / x.size(-1),
            .dim = x.size(-1),
            .eps = static_cast<float>(kTttNormEps),
            .weight = weight.const_data_ptr<float>(),
            .x = x.const_data_ptr()};
  }
  static const FastWeightsKernels& kernels(const at::Tensor& x) {
    return *ops::ttt_norm_kernels(x.device().type(), x.size(-1));
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const c10::DeviceGuard device(x.device());
    const at::Tensor y = at::empty_like(x);
    ops::TttNorm p = problem(x, weight);
    p.bias = bias.const_data_ptr<float>(), p.y = y.mutable_data_ptr();
    kernels(x).ttt_norm_forward(p);
    context->save_for_backward({x, weight});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], d_y = gradients[0].contiguous(), d_x = at::empty_like(x);
    const c10::DeviceGuard device(x.device());
    ops::TttNorm p = problem(x, weight);
    constexpr int64_t kRowsOfAPart = 64, kMaxParts = 512;
    p.part_count = std::clamp<int64_t>(p.rows / kRowsOfAPart, 1, kMaxParts);
    const at::Tensor parts = at::empty({p.part_count, 2, p.dim}, weight.options());
    p.d_y = d_y.const_data_ptr(), p.d_x = d_x.mutable_data_ptr(), p.parts = TttCall::write(parts);
    kernels(x).ttt_norm_backward(p);
    const at::Tensor sums = parts.sum(0);
    return {d_x, sums[0], sums[1]};
  }
};

}  // namespace

at::Tensor ttt_post_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::ScalarType type) {
  const auto ready = [](const at::Tensor& t) {
    return t.is_contiguous() && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  };
  if (x.scalar_type() != at::kBFloat16 || type != at::kBFloat16 || weight.scalar_type() != at::kFloat ||
      x.numel() == 0 || !ready(x) || !ready(weight) || !ready(bias) ||
      !ops::ttt_norm_kernels(x.device().type(), x.size(-1))) {
    return at::layer_norm(x.to(weight.scalar_type()), weight.sizes(), weight, bias, kTttNormEps).to(type);
  }
  return PostNormNode::apply(x, weight, bias);
}

const FastWeightsKernels* ttt_kernels(const TttInputs& in, const TttWeights& start) {
  const bool tokens = in.q.size(-1) == kDim && in.position_scale.size(0) == kTokens && in.q.numel() > 0 &&
                      (in.q.scalar_type() == at::kBFloat16 || in.q.scalar_type() == at::kFloat);
  const bool floats =
      std::ranges::all_of(std::array{start.W[0], start.b[0], in.rate, in.position_scale, in.norm_weight, in.norm_bias},
                          [](const at::Tensor& x) { return x.scalar_type() == at::kFloat; });
  if (!in.rounded || !tokens || !floats || start.W.size() > 2) return nullptr;
  return ops::ttt_kernels(in.q.device().type(), start.W.size() == 1 ? 0 : start.W[0].size(-1));
}

std::pair<at::Tensor, TttWeights> run_ttt_kernels(const FastWeightsKernels& kernels, const TttInputs& in,
                                                  const TttWeights& start) {
  const MiniBatchSpan s{in.q, in.k, in.v, in.rate, in.position_scale, in.norm_weight, in.norm_bias, start};
  if (at::GradMode::is_enabled()) {
    variable_list inputs = {s.q, s.k, s.v, s.rate, s.scale, s.norm_weight, s.norm_bias};
    for (const at::Tensor& x : flatten(start)) inputs.push_back(x);
    const variable_list result = TttNode::apply(at::TensorList(inputs), in.last_state);
    return {result[0], weights_of(result.begin() + 1, result.end())};
  }
  const c10::DeviceGuard device(s.q.device());
  const at::Tensor out = at::empty(s.q.sizes(), s.q.options());
  TttCall call(s, /*for_backward=*/false);
  call.p.out = call.as_it_lies(out);
  TttWeights after;
  if (in.last_state) call.leaves_state(after = empty_like(start));
  kernels.ttt_forward(call.p);
  return {out, after};
}

}  // namespace lazy
