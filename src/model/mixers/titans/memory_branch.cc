#include "model/mixers/titans/memory_branch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "model/mixers/recurrence/short_convolution.h"
#include "model/mixers/registry.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {

namespace {

constexpr const char* kStreams[] = {"q", "k", "v"};
constexpr const char* kGates[] = {"step", "momentum", "decay"};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Computes the gates in one autograd node with a manual backward pass, which launches few kernels. This matters for
// Titans MAC, which computes the gates of each segment sequentially.
struct GatesNode : torch::autograd::Function<GatesNode> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& bias,
                               int64_t divisor) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const int64_t B = logits.size(0), T = logits.size(1), H = logits.size(2) / 3;
    const at::Tensor all = at::empty({3, B, H, T}, logits.options().dtype(at::kFloat));
    at::Tensor by_token = all.permute({1, 3, 0, 2});
    at::add_out(by_token, logits.unflatten(2, {3, H}), bias.view({3, H}));
    const at::Tensor log_momentum = at::log_sigmoid(all[1]);
    all.narrow(0, 1, 2).neg_();
    const at::Tensor log_keep = at::log_sigmoid(all[2]), sigmoids = all.narrow(0, 0, 2).sigmoid_();
    const at::Tensor step = (sigmoids[0] * sigmoids[1]).div_(divisor);
    context->save_for_backward({sigmoids, step, log_keep});
    context->saved_data["type"] = logits.scalar_type();
    return {step.transpose(1, 2), log_momentum.transpose(1, 2), log_keep.transpose(1, 2)};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &sigmoids = saved[0], &step = saved[1], &log_keep = saved[2];
    const auto by_head = [&](size_t n) { return gradients[n].transpose(1, 2); };
    const at::Tensor by_log_step = by_head(0) * step;
    const at::Tensor d = at::empty({3, step.size(0), step.size(1), step.size(2)}, step.options());
    at::Tensor d_step = d[0], d_momentum = d[1], d_decay = d[2];
    at::addcmul_out(d_step, by_log_step, by_log_step, sigmoids[0], -1);
    at::mul_out(d_momentum, by_head(1) + by_log_step, sigmoids[1]);  // sigmoids[1] is 1 - momentum
    d_momentum.sub_(by_log_step);
    at::mul_out(d_decay, by_head(2), log_keep.expm1());  // expm1(log_keep) is minus the decay gate
    const at::Tensor d_logits = d.permute({1, 3, 0, 2})
                                    .to(context->saved_data["type"].toScalarType(),
                                        /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
    return {d_logits.flatten(2), d.sum(at::IntArrayRef{1, 3}).flatten(), {}};
  }
};

}  // namespace

MemoryGates memory_gates(const at::Tensor& logits, const at::Tensor& bias, int64_t key_dim, int64_t chunk) {
  const variable_list gates = GatesNode::apply(logits, bias, std::max(key_dim, chunk));
  return {gates[0], gates[1], gates[2]};
}

at::Tensor joined_weight(const Linear& linear, at::ScalarType type) {
  return at::GradMode::is_enabled() ? at::cat(linear.parts()).to(type) : linear.matrix(type);
}

MemoryBranch::MemoryBranch(const ModelConfig& c, at::Device device)
    : heads_(c.mixer.heads),
      chunk_(c.mixer.chunk),
      qkv_(c.hidden_size, {c.hidden_size, c.hidden_size, c.hidden_size}, device),
      gates_(c.hidden_size, {c.mixer.heads, c.mixer.heads, c.mixer.heads}, device) {}

NamedTensors MemoryBranch::own_parameters() const {
  NamedTensors out;
  for (size_t n = 0; n < 3; ++n) {
    out.emplace_back(std::string("memory.") + kStreams[n] + "_proj.weight", qkv_.parts()[n]);
    out.emplace_back(std::string("memory.") + kGates[n] + "_proj.weight", gates_.parts()[n]);
  }
  return out;
}

void MemoryBranch::bind_parameters(const ParameterTable& table) {
  for (size_t n = 0; n < 3; ++n) {
    convolutions_[n] = table[std::string("memory.") + kStreams[n] + "_conv1d.weight"];
    biases_[n] = table[std::string("memory.") + kGates[n] + "_proj.bias"];
  }
  // With this bias, about 1% of the memory decays per token at the start of training.
  table.fill("memory.decay_proj.bias", -4.6);
  norm_ = table["memory.model_norm.weight"];
  if (norm_.defined()) table.fill("memory.model_norm.weight", 1);
  for (int64_t n = 1; table["memory.start_" + std::to_string(n)].defined(); ++n) {
    weights_.push_back(table["memory.start_" + std::to_string(n)]);
  }
}

std::optional<bool> MemoryBranch::init_parameter(const std::string& name, at::Tensor& tensor,
                                                 at::Generator& generator) {
  if (name.starts_with("memory.start_")) {
    tensor.normal_(0, 1 / std::sqrt(static_cast<double>(tensor.size(1))), generator);
    return true;
  }
  if (name.ends_with("_conv1d.weight")) {
    const double bound = 1 / std::sqrt(static_cast<double>(tensor.size(2)));
    tensor.uniform_(-bound, bound, generator);
    return true;
  }
  return std::nullopt;
}

at::Tensor MemoryBranch::projections(at::ScalarType type) const { return joined_weight(qkv_, type); }
at::Tensor MemoryBranch::gate_weight(at::ScalarType type) const { return joined_weight(gates_, type); }
at::Tensor MemoryBranch::gate_bias() const { return at::cat({biases_[0], biases_[1], biases_[2]}); }
at::Tensor MemoryBranch::convolutions() const {
  return convolutions_[0].defined() ? at::cat({convolutions_[0], convolutions_[1], convolutions_[2]}) : at::empty({0});
}

at::Tensor MemoryBranch::forward(const NormOutput& x, std::vector<at::Tensor>* state, int64_t seen,
                                 const PackedSequences* packed) const {
  const auto parts = qkv_.forward(x);
  std::vector<at::Tensor> after(3, at::empty({0}));
  const auto stream = [&](size_t n) {
    at::Tensor y;
    if (convolutions_[n].defined()) {
      auto out = recurrence::short_convolution({.x = parts[n],
                                                .weight = convolutions_[n],
                                                .state = state && !state->empty() ? (*state)[n] : at::Tensor(),
                                                .cu_seqlens = packed ? packed->cu_seqlens_q : at::Tensor()});
      y = out.out;
      if (state) after[n] = out.state;
    } else {
      y = at::silu(parts[n]);
    }
    return y.reshape({y.size(0), y.size(1), heads_, -1});
  };
  const at::Tensor q = stream(0), k = stream(1), v = stream(2);
  const auto [step, log_momentum, log_keep] =
      memory_gates(at::cat(gates_.forward(x), -1), gate_bias(), q.size(-1), chunk_);
  const MemoryState before = state && !state->empty() ? memory_state({state->begin() + 3, state->end()}, seen % chunk_)
                                                      : initial_memory_state(weights_, x.value.size(0));
  const MemoryInputs in{.q = q,
                        .k = k,
                        .v = v,
                        .step = step,
                        .log_momentum = log_momentum,
                        .log_keep = log_keep,
                        .norm = norm_,
                        .rounded = x.value.scalar_type() != at::kFloat,
                        .last_state = state != nullptr,
                        .raw = true};
  if (packed) return memory_packed(in, before, chunk_, batches_of(*packed, chunk_, x.value.device()));
  const auto [answers, memory] = memory_chunks(in, before, chunk_);
  if (state) {
    for (const at::Tensor& t : tensors(memory)) after.push_back(t);
    *state = after;
  }
  return answers;
}

MemoryOutput::MemoryOutput(const ModelConfig& c, at::Device device)
    : eps_(c.norm.eps), output_(c.hidden_size, {c.hidden_size}, device) {
  if (c.mixer.gate) gate_ = Linear(c.hidden_size, {c.hidden_size}, device);
}

NamedTensors MemoryOutput::own_parameters() const {
  NamedTensors out = {{"memory.o_proj.weight", output_.parts()[0]}};
  if (!gate_.parts().empty()) out.emplace_back("memory.g_proj.weight", gate_.parts()[0]);
  return out;
}

std::vector<const Linear*> MemoryOutput::products() const {
  if (gate_.parts().empty()) return {&output_};
  return {&gate_, &output_};
}

void MemoryOutput::bind_parameters(const ParameterTable& table) {
  table.fill("memory.norm.weight", 1);
  norm_ = table["memory.norm.weight"];
}

at::Tensor MemoryOutput::forward(const at::Tensor& answers, const NormOutput& x) const {
  at::Tensor y = ops::rms_norm(answers, norm_, eps_).reshape(x.value.sizes()).to(x.value.scalar_type());
  if (!gate_.parts().empty()) y = ops::swiglu(gate_.forward(x)[0], y);
  return output_.forward(y)[0];
}

BranchProduct::BranchProduct(const ModelConfig& c, at::Device device)
    : eps_(c.norm.eps), output_(c.hidden_size, {c.hidden_size}, device) {}

void BranchProduct::bind_parameters(const ParameterTable& table) {
  for (const char* name : {"attn.norm.weight", "memory.norm.weight"}) table.fill(name, 1);
  attention_norm_ = table["attn.norm.weight"];
  memory_norm_ = table["memory.norm.weight"];
}

at::Tensor BranchProduct::normalized(const at::Tensor& memory, at::ScalarType type) const {
  return ops::rms_norm(memory, memory_norm_, eps_).to(type);
}

at::Tensor BranchProduct::forward(const at::Tensor& attention, const at::Tensor& memory, at::ScalarType type) const {
  return output_.forward(ops::swiglu(memory, ops::rms_norm(attention, attention_norm_, eps_).to(type)))[0];
}

void TitansMixer::register_parameters(NamedTensors made, at::Device device) {
  for (auto& item : memory_.own_parameters()) made.push_back(item);
  table_ = ParameterTable(mixer_kind(config_).shapes(config_), made, device);
  memory_.bind_parameters(table_);
}

bool TitansMixer::init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                                 at::Generator& generator) const {
  if (const auto started = MemoryBranch::init_parameter(name, tensor, generator)) return *started;
  return Mixer::init_parameter(name, tensor, config, generator);
}

NamedTensors qkv_parameters(const Linear& qkv) {
  NamedTensors out;
  for (size_t n = 0; n < 3; ++n) out.emplace_back(fmt::format("attn.{}_proj.weight", "qkv"[n]), qkv.parts()[n]);
  return out;
}

}  // namespace lazy
