#include "model/mixers/mamba2.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "model/blocks/activation_checkpoint.h"
#include "model/blocks/linear.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/fla_fields.h"
#include "model/mixers/gates.h"
#include "model/mixers/mixer.h"
#include "model/mixers/recurrence/linear_attention.h"
#include "model/mixers/recurrence/short_convolution.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {
namespace {

class Mamba2Mixer final : public Mixer {
 public:
  Mamba2Mixer(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override { return {&input_, &output_}; }
  bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  at::Tensor normed(const at::Tensor& y) const;  // applies an RMSNorm to each group of y (B, L, inner)

  int64_t heads_, head_dim_, state_size_, groups_, chunk_;
  double norm_eps_;
  double step_min_, step_max_;
  bool limits_step_;
  Linear input_, output_;
  ParameterTable table_;
};

constexpr int64_t kMamba2Chunk = 64;  // the fastest chunk size on a CPU

Mamba2Mixer::Mamba2Mixer(const ModelConfig& c, int64_t, at::Device device)
    : heads_(c.mixer.heads),
      head_dim_(c.mixer.value_dim),
      state_size_(c.mixer.state_size),
      groups_(c.mixer.groups),
      chunk_(c.mixer.chunk > 0 ? c.mixer.chunk : kMamba2Chunk),
      norm_eps_(c.norm.eps),
      step_min_(c.mixer.step_min),
      step_max_(c.mixer.step_max),
      // A lower limit of 0 has no effect, because the step size is always positive.
      limits_step_(step_min_ > 0 || !std::isinf(step_max_)),
      input_(c.hidden_size, {mamba2_inner(c.mixer) + mamba2_convolved(c.mixer) + c.mixer.heads}, device),
      output_(mamba2_inner(c.mixer), {c.hidden_size}, device),
      table_(kMamba2.shapes(c),
             {{"mixer.in_proj.weight", input_.parts()[0]}, {"mixer.out_proj.weight", output_.parts()[0]}}, device) {}

bool Mamba2Mixer::init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& c,
                                 at::Generator& generator) const {
  if (name == "mixer.A_log") {
    init_A_log(tensor, 1, 16, generator);
  } else if (name == "mixer.dt_bias") {
    init_dt_bias(tensor, generator);
  } else if (name == "mixer.D" || name == "mixer.norm.weight") {
    tensor.fill_(1);
  } else if (name == "mixer.out_proj.weight") {
    // Initializes the output projection uniformly. The bound decreases with the number of layers, because the outputs
    // of all layers are added in the residual stream.
    const double bound = 1 / std::sqrt(static_cast<double>(tensor.size(1) * c.num_layers));
    tensor.uniform_(-bound, bound, generator);
  } else {
    return Mixer::init_parameter(name, tensor, c, generator);
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
  const auto parts = input_.forward(x)[0].split_with_sizes(
      {inner, inner + 2 * shared, heads_}, 2);  // three parts: the gate; x, B and C concatenated; the step size
  RecurrentState state(options, layer, 2);      // the states of the recurrence and of the convolution
  recurrence::ConvolutionInputs wave{
      .x = parts[1], .weight = table_["mixer.conv1d.weight"], .bias = table_["mixer.conv1d.bias"], .state = state[1]};
  if (options.packed) wave.cu_seqlens = options.packed->cu_seqlens_q;
  const recurrence::Convolution convolved = recurrence::short_convolution(wave);
  const auto xBC = convolved.out.split_with_sizes({inner, shared, shared}, 2);
  const at::Tensor values = xBC[0].unflatten(2, {heads_, head_dim_}),
                   unlimited = step_size(parts[2], table_["mixer.dt_bias"]),
                   step = limits_step_ ? unlimited.clamp(step_min_, step_max_) : unlimited;
  recurrence::Outputs y = recurrence::decay({.q = xBC[2].unflatten(2, {groups_, state_size_}),
                                             .k = xBC[1].unflatten(2, {groups_, state_size_}),
                                             .v = values,
                                             .log_decay = log_decay(step, table_["mixer.A_log"]),
                                             .beta = step,
                                             .skip = table_["mixer.D"],
                                             .initial_state = state[0],
                                             .cu_seqlens = wave.cu_seqlens},
                                            chunk_);
  // The backward pass recomputes the results of the convolution, the gate and the norm. Saving them would double the
  // memory that a layer saves for the backward pass.
  const auto convolve = [cu_seqlens = wave.cu_seqlens](const std::vector<at::Tensor>& t) {
    const recurrence::ConvolutionInputs again{
        .x = t[0], .weight = t[1], .bias = t[2], .state = t[3], .cu_seqlens = cu_seqlens};
    return std::vector<at::Tensor>{recurrence::short_convolution(again).out};
  };
  const auto recurrent = recompute_before_backward({convolved.out}, {wave.x, wave.weight, wave.bias, wave.state},
                                                   convolve, {y.out, y.state});
  y = {recurrent[0], recurrent[1]};
  state[0] = y.state, state[1] = convolved.state;
  state.save();
  const auto gate = [this](const std::vector<at::Tensor>& t) {
    const at::Tensor gated = ops::swiglu(t[0], t[1]);
    return std::vector<at::Tensor>{gated, normed(gated)};
  };
  const std::vector<at::Tensor> inputs{parts[0], y.out.flatten(2, 3)}, gated = gate(inputs);
  return recompute_before_backward(gated, inputs, gate, output_.forward(gated[1]))[0];
}

void infer_mamba2_sizes(ModelConfig& m) {
  MixerConfig& x = m.mixer;
  if (x.value_dim == 0) x.value_dim = 64;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, 2 * m.hidden_size / x.value_dim);
  if (x.key_dim == 0) x.key_dim = x.state_size;
}

void check_mamba2(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  if (x.key_dim != x.state_size)
    fail("model", "mixer.key_dim: mamba2 requires key_dim = state_size ({}), found {}", x.state_size, x.key_dim);
  if (x.heads % x.groups != 0)
    fail("model", "mixer.groups: expected a divisor of heads ({}), found {}", x.heads, x.groups);
  if (mamba2_inner(x) % m.hidden_size != 0) {
    fail(
        "model",
        "mixer.heads: expected heads * value_dim to be a multiple of hidden_size ({}), found heads {} and value_dim {}",
        m.hidden_size, x.heads, x.value_dim);
  }
  if (x.conv_size < 1)
    fail("model", "mixer.conv_size: mamba2 requires a convolution with at least 1 tap, found {}", x.conv_size);
  if (!x.gate) fail("model", "mixer.gate: expected true, because mamba2 always has a gate, found false");
}

std::vector<ParameterShape> mamba2_shapes(const ModelConfig& m) {
  const MixerConfig& x = m.mixer;
  const int64_t d = m.hidden_size, inner = mamba2_inner(x), convolved = mamba2_convolved(x);
  return {{"mixer.dt_bias", {x.heads}, true, /*keep_fp32=*/true},
          {"mixer.A_log", {x.heads}, true, /*keep_fp32=*/true},
          {"mixer.D", {x.heads}, true, /*keep_fp32=*/true},
          {"mixer.conv1d.weight", {convolved, 1, x.conv_size}},
          {"mixer.conv1d.bias", {convolved}},
          {"mixer.in_proj.weight", {inner + convolved + x.heads, d}},
          {"mixer.norm.weight", {inner}},
          {"mixer.out_proj.weight", {d, inner}}};
}

void read_mamba2(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mixer;
  fields.integer({"state_size"}, x.state_size);
  fields.integer({"n_groups"}, x.groups);
  fields.integer({"conv_kernel"}, x.conv_size);
  read_inner_heads(fields, "head_dim", "hidden_size", m);
  int64_t heads = x.heads;
  fields.integer({"num_heads"}, heads);
  if (heads != x.heads)
    fields.wrong("num_heads", fmt::format("{} (expand * hidden_size / head_dim)", x.heads).c_str(), heads);
  // transformers writes the first of these names.
  fields.number({"layer_norm_epsilon", "norm_eps", "rms_norm_eps"}, m.norm.eps);
  fields.interval("time_step_limit", x.step_min, x.step_max);
}

void write_mamba2(const ModelConfig& m, nlohmann::ordered_json& out) {
  const MixerConfig& x = m.mixer;
  out["num_heads"] = x.heads;
  out["head_dim"] = x.value_dim;
  out["expand"] = mamba2_inner(x) / m.hidden_size;
  out["state_size"] = x.state_size;
  out["n_groups"] = x.groups;
  out["conv_kernel"] = x.conv_size;
  // JSON cannot represent infinity, so the largest double is written instead of an infinite limit. (Python's JSON
  // library would write Infinity, which other libraries reject.)
  if (x.step_min > 0 || !std::isinf(x.step_max))
    out["time_step_limit"] = {x.step_min, std::min(x.step_max, std::numeric_limits<double>::max())};
  out["use_conv_bias"] = true;
  out["use_bias"] = false;
  out["rmsnorm"] = true;
  out["chunk_size"] = 256;  // transformers uses this value, which affects only speed; this program ignores it
  out["layer_norm_epsilon"] = m.norm.eps;
}

}  // namespace

const MixerKind kMamba2 = {.type = MixerType::mamba2,
                           .model_type = "mamba2",
                           .architecture = "Mamba2ForCausalLM",
                           .mlp = false,
                           .norm_eps = 1e-5,
                           // The key `gate` accepts only the value true.
                           .keys = {"conv_size", "state_size", "groups", "gate"},
                           .make = make_mixer_as<Mamba2Mixer>,
                           .infer_sizes = infer_mamba2_sizes,
                           .check = check_mamba2,
                           .shapes = mamba2_shapes,
                           .read = read_mamba2,
                           .write = write_mamba2};

}  // namespace lazy
