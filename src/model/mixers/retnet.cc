#include "model/mixers/retnet.h"

#include <ATen/ATen.h>

#include <cmath>

#include "model/language_model.h"
#include "model/mixers/layer_state.h"
#include "model/mixers/output_norm.h"
#include "model/mixers/recurrence/decay.h"
#include "model/mixers/retnet_kind.h"
#include "ops/rope.h"

namespace lazy {
namespace {

constexpr double kRetNetRopeBase = 1e4;
constexpr int64_t kRetNetChunk = 128;  // the fastest on a CPU

}  // namespace

RetNetMixer::RetNetMixer(const ModelConfig& c, at::Device device)
    : heads_(c.mix.heads),
      key_dim_(c.mix.key_dim),
      value_dim_(c.mix.value_dim),
      chunk_(c.mix.chunk > 0 ? c.mix.chunk : kRetNetChunk),
      gate_(c.mix.gate),
      norm_eps_(c.norm_eps) {
  const int64_t key = heads_ * key_dim_, value = heads_ * value_dim_;
  std::vector<int64_t> rows = {key, key, value};
  if (gate_) rows.push_back(value);
  qkvg_ = Linear(c.hidden_size, rows, device);
  output_ = Linear(value, {c.hidden_size}, device);
  NamedTensors made = {{"attn.o_proj.weight", output_.parts()[0]}};
  const char* names[] = {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.g_proj.weight"};
  for (size_t i = 0; i < rows.size(); ++i) made.emplace_back(names[i], qkvg_.parts()[i]);
  table_ = ParameterTable(kRetNet.shapes(c), made, device);
  // Head h keeps 1 - 2^(-5 - h) of its state at each token.
  const at::Tensor head = at::arange(heads_, at::TensorOptions().dtype(at::kDouble));
  log_decay_ = at::log1p(-at::exp2(-5 - head)).to(device);
}

bool RetNetMixer::init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& c,
                                 at::Generator& generator) const {
  if (name.find("norm") == std::string::npos) return Mixer::init_parameter(name, fresh, c, generator);
  fresh.fill_(1);
  return true;
}

at::Tensor RetNetMixer::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const auto parts = qkvg_.forward(x);
  ops::RopeOptions turned;
  if (options.packed) turned.positions = options.packed->positions;
  const auto rotated = [&](const at::Tensor& part) {
    return ops::rope(part.unflatten(2, {heads_, key_dim_}), kRetNetRopeBase, options.cache ? options.cache->length : 0,
                     turned);
  };
  recurrence::Inputs in{.q = rotated(parts[0]),
                        .k = rotated(parts[1]),
                        .v = parts[2].unflatten(2, {heads_, value_dim_}),
                        .log_decay = log_decay_,
                        .scale = 1 / std::sqrt(static_cast<double>(key_dim_))};
  if (options.packed) in.cu_seqlens = options.packed->cu_seqlens_q;
  RememberedState state(options, layer, 1);
  in.initial_state = state[0];
  const recurrence::Outputs y = recurrence::decay(in, chunk_);
  state[0] = y.state;
  state.keep();
  const at::Tensor weight = table_[gate_ ? "attn.g_norm_swish_gate.weight" : "attn.g_norm.weight"];
  return output_.forward(output_norm(y.out, weight, norm_eps_, gate_ ? parts[3] : at::Tensor()))[0];
}

}  // namespace lazy
