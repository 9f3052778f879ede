#include "model/mixers/mamba2.h"

#include <ATen/ATen.h>

#include <cmath>

#include "model/language_model.h"
#include "model/mixers/decay_gate.h"
#include "model/mixers/layer_state.h"
#include "model/mixers/mamba2_kind.h"
#include "model/mixers/recurrence/decay.h"
#include "model/mixers/recurrence/short_convolution.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {
namespace {

constexpr int64_t kMamba2Chunk = 64;  // the fastest on a CPU

}  // namespace

Mamba2Mixer::Mamba2Mixer(const ModelConfig& c, at::Device device)
    : heads_(c.mix.heads),
      head_dim_(c.mix.value_dim),
      state_size_(c.mix.state_size),
      groups_(c.mix.groups),
      chunk_(c.mix.chunk > 0 ? c.mix.chunk : kMamba2Chunk),
      norm_eps_(c.norm_eps),
      input_(c.hidden_size, {mamba2_inner(c.mix) + mamba2_convolved(c.mix) + c.mix.heads}, device),
      output_(mamba2_inner(c.mix), {c.hidden_size}, device),
      table_(kMamba2.shapes(c),
             {{"mixer.in_proj.weight", input_.parts()[0]}, {"mixer.out_proj.weight", output_.parts()[0]}}, device) {}

bool Mamba2Mixer::init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& c,
                                 at::Generator& generator) const {
  if (name == "mixer.A_log") {
    start_A_log(fresh, 1, 16, generator);
  } else if (name == "mixer.dt_bias") {
    start_dt_bias(fresh, generator);
  } else if (name == "mixer.D" || name == "mixer.norm.weight") {
    fresh.fill_(1);
  } else if (name == "mixer.out_proj.weight") {
    // Every block adds to the residual stream: the more of them, the less each.
    const double bound = 1 / std::sqrt(static_cast<double>(fresh.size(1) * c.num_layers));
    fresh.uniform_(-bound, bound, generator);
  } else {
    return Mixer::init_parameter(name, fresh, c, generator);
  }
  return true;
}

at::Tensor Mamba2Mixer::normed(const at::Tensor& y) const {
  const at::Tensor weight = table_["mixer.norm.weight"];
  if (groups_ == 1) return ops::rms_norm(y, weight, norm_eps_);
  const int64_t width = y.size(2) / groups_;
  const at::Tensor ones = at::ones({width}, weight.options());
  return ops::rms_norm(y.unflatten(2, {groups_, width}), ones, norm_eps_).flatten(2, 3) * weight.to(y.scalar_type());
}

at::Tensor Mamba2Mixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const int64_t inner = heads_ * head_dim_, shared = groups_ * state_size_;
  const auto parts =
      input_.forward(x)[0].split_with_sizes({inner, inner + 2 * shared, heads_}, 2);  // gate; x, B, C; step
  RememberedState state(options, layer, 2);  // of the recurrence, of the convolution
  recurrence::ConvolutionInputs wave{
      .x = parts[1], .weight = table_["mixer.conv1d.weight"], .bias = table_["mixer.conv1d.bias"], .state = state[1]};
  if (options.packed) wave.cu_seqlens = options.packed->cu_seqlens_q;
  const recurrence::Convolution convolved = recurrence::short_convolution(wave);
  const auto xBC = convolved.out.split_with_sizes({inner, shared, shared}, 2);
  const at::Tensor values = xBC[0].unflatten(2, {heads_, head_dim_}),
                   step = step_size(parts[2], table_["mixer.dt_bias"]);
  const recurrence::Outputs y = recurrence::decay({.q = xBC[2].unflatten(2, {groups_, state_size_}),
                                                   .k = xBC[1].unflatten(2, {groups_, state_size_}),
                                                   .v = values,
                                                   .log_decay = log_decay(step, table_["mixer.A_log"]),
                                                   .beta = step,
                                                   .skip = table_["mixer.D"],
                                                   .initial_state = state[0],
                                                   .cu_seqlens = wave.cu_seqlens},
                                                  chunk_);
  state[0] = y.state, state[1] = convolved.state;
  state.keep();
  return output_.forward(normed(ops::swiglu(parts[0], y.out.flatten(2, 3))))[0];
}

}  // namespace lazy
