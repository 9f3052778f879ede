#include "model/mixers/delta_net.h"

#include <ATen/ATen.h>

#include <cmath>

#include "model/language_model.h"
#include "model/mixers/decay_gate.h"
#include "model/mixers/delta_net_kind.h"
#include "model/mixers/layer_state.h"
#include "model/mixers/output_norm.h"
#include "model/mixers/recurrence/delta_rule.h"
#include "model/mixers/recurrence/short_convolution.h"
#include "ops/rms_norm.h"

namespace lazy {
namespace {

constexpr int64_t kDeltaNetChunk = 64;  // the fastest on a CPU

}  // namespace

DeltaNetMixer::DeltaNetMixer(const ModelConfig& c, at::Device device)
    : heads_(c.mix.heads),
      key_dim_(c.mix.key_dim),
      value_dim_(c.mix.value_dim),
      chunk_(c.mix.chunk > 0 ? c.mix.chunk : kDeltaNetChunk),
      convolves_(c.mix.conv_size > 0),
      gate_(c.mix.gate),
      decays_(c.mixer == kGatedDeltaNet.name),
      norm_eps_(c.norm_eps) {
  const int64_t key = heads_ * key_dim_, value = heads_ * value_dim_;
  std::vector<int64_t> rows = {key, key, value}, rates = {heads_};
  if (gate_) rows.push_back(value);
  if (decays_) rates.push_back(heads_);
  qkvg_ = Linear(c.hidden_size, rows, device);
  rates_ = Linear(c.hidden_size, rates, device);  // apart: their few columns would leave the others' rows unaligned
  output_ = Linear(value, {c.hidden_size}, device);
  NamedTensors made = {{"attn.b_proj.weight", rates_.parts()[0]}, {"attn.o_proj.weight", output_.parts()[0]}};
  if (decays_) made.emplace_back("attn.a_proj.weight", rates_.parts()[1]);
  const char* names[] = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.g_proj.weight"};
  for (size_t i = 0; i < rows.size(); ++i) made.emplace_back(names[i], qkvg_.parts()[i]);
  table_ = ParameterTable((decays_ ? kGatedDeltaNet : kDeltaNet).shapes(c), made, device);
  unit_weight_ = at::full({key_dim_}, 1 / std::sqrt(static_cast<double>(key_dim_)),
                          at::TensorOptions().dtype(at::kFloat).device(device));
}

bool DeltaNetMixer::init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& c,
                                   at::Generator& generator) const {
  if (name == "attn.A_log") {
    start_A_log(fresh, 0, 16, generator);
  } else if (name == "attn.dt_bias") {
    start_dt_bias(fresh, generator);
  } else if (name == "attn.o_norm.weight") {
    fresh.fill_(1);
  } else {
    return Mixer::init_parameter(name, fresh, c, generator);
  }
  return true;
}

at::Tensor DeltaNetMixer::convolved(const char* weight, const at::Tensor& x, const ForwardOptions& options,
                                    at::Tensor* state) const {
  if (!convolves_) return at::silu(x);
  recurrence::ConvolutionInputs in{.x = x, .weight = table_[weight]};
  if (options.packed) in.cu_seqlens = options.packed->cu_seqlens_q;
  if (state) in.state = *state;
  const recurrence::Convolution y = recurrence::short_convolution(in);
  if (state) *state = y.state;
  return y.out;
}

// x / sqrt(sum of squares + 1e-6) is an RMSNorm whose weight and epsilon know the dimension.
at::Tensor DeltaNetMixer::unit(const at::Tensor& heads) const {
  return ops::rms_norm(heads, unit_weight_, 1e-6 / static_cast<double>(key_dim_));
}

at::Tensor DeltaNetMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                                  at::Tensor*) const {
  const auto parts = qkvg_.forward(x), rates = rates_.forward(x);
  RememberedState state(options, layer, 4);  // of the delta rule, of the convolutions of q, k and v
  const auto heads = [&](const char* weight, size_t part, int64_t dim) {
    return convolved(weight, parts[part], options, options.cache ? &state[1 + part] : nullptr)
        .unflatten(2, {heads_, dim});
  };
  recurrence::Inputs in{.q = unit(heads("attn.q_conv1d.weight", 0, key_dim_)),
                        .k = unit(heads("attn.k_conv1d.weight", 1, key_dim_)),
                        .v = heads("attn.v_conv1d.weight", 2, value_dim_),
                        .beta = at::sigmoid(rates[0].to(at::kFloat)),
                        .initial_state = state[0],
                        .scale = 1 / std::sqrt(static_cast<double>(key_dim_))};
  if (decays_) in.log_decay = log_decay(step_size(rates[1], table_["attn.dt_bias"]), table_["attn.A_log"]);
  if (options.packed) in.cu_seqlens = options.packed->cu_seqlens_q;
  const recurrence::Outputs y = recurrence::delta_rule(in, chunk_);
  state[0] = y.state;
  state.keep();
  return output_.forward(
      output_norm(y.out, table_["attn.o_norm.weight"], norm_eps_, gate_ ? parts[3] : at::Tensor()))[0];
}

}  // namespace lazy
