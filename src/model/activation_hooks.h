// Activation hooks: named points in the forward pass where a tensor can be read or replaced. N is the layer number,
// counted from 0 as in checkpoints.
//
//   embedding.tokens, embedding.positions   rows of the token table and of the position table
//   embedding                               their sum, the input of the first layer
//   layers.N.residual, layers.N.middle      the residual stream before the mixer and before the MLP
//   layers.N.attention.input                the input of attention, after the norm (layers.N.mixer.input: other mixers)
//   layers.N.attention.output               the output of the output projection (layers.N.mixer.output: other mixers)
//   layers.N.attention.q.projected, .k.projected, .v   the projections with bias, (batch, length, heads, head_dim)
//   layers.N.attention.q.normed, .k.normed  queries and keys after QK-norm, in models that have it
//   layers.N.attention.q, .k                the queries and keys of the score computation, after RoPE
//   layers.N.attention.scores, .weights     (batch, heads, queries, keys); masked scores are -inf
//   layers.N.attention.gate                 (batch, length, heads, 1 or head_dim), in models with a gate
//   layers.N.attention.heads                the gated output of each head, (batch, length, heads, head_dim)
//   layers.N.mlp.input, .output             the input of the MLP after the norm, and the output of its last projection
//   layers.N.mlp.inner                      the input of the last projection, (batch, length, inner width); not
//                                           available in mixtures of experts
//   final.residual, final.hidden            the hidden states before and after the final norm
//
// Attention scores and weights are computed only if a hook is registered for them. That layer then materializes them
// instead of calling the fused operator, so its memory grows with the square of the length.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lazy {

struct ModelConfig;

class ActivationHooks {
 public:
  // An action receives an activation and returns its replacement, a tensor of the same shape, or an undefined tensor to
  // keep the activation. Actions run in the order of their registration; each one receives the result of the previous
  // one. With autograd enabled, the replacement is part of the graph.
  using Action = std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)>;
  void replace(const std::string& glob, Action action) { actions_.emplace_back(glob, std::move(action)); }
  void read(const std::string& glob, std::function<void(const std::string& name, const at::Tensor& tensor)> look);

  // Called by the forward pass: runs all actions of a hook point and returns the resulting tensor. Layer -1 denotes a
  // hook point outside the layers, whose name contains no layer number.
  at::Tensor visit(int64_t layer, const char* place, at::Tensor tensor) const;
  bool wants(int64_t layer, const char* place) const;
  // Returns these hooks as an argument for forward(), or null if no action is registered.
  const ActivationHooks* or_null() const { return actions_.empty() ? nullptr : this; }

 private:
  std::vector<std::pair<std::string, Action>> actions_;
};

// The activation hooks of one layer. Without hooks the cost is one null check per hook point.
class LayerHooks {
 public:
  LayerHooks(const ActivationHooks* probes, int64_t layer) : probes_(probes), layer_(layer) {}
  at::Tensor operator()(const char* place, at::Tensor tensor) const {
    return probes_ ? probes_->visit(layer_, place, std::move(tensor)) : tensor;
  }
  bool wants(const char* place) const { return probes_ && probes_->wants(layer_, place); }
  explicit operator bool() const { return probes_ != nullptr; }

 private:
  const ActivationHooks* probes_;
  int64_t layer_;
};

// Matches a glob pattern with *, ? and [a-z]. Wildcards match dots too.
bool glob_matches(const std::string& glob, const std::string& name);
// All hook point names of a model, in execution order.
std::vector<std::string> hook_point_names(const ModelConfig& config);

}  // namespace lazy
