// Activation hooks: named points in the forward pass where a tensor is read or replaced.
//
//   embedding.tokens, embedding.positions, embedding   the tables' rows and their sum, the first layer's input
//   layers.N.residual, layers.N.middle    the residual stream before the layer's first and second half
//   layers.N.attention.input, .output     after the norm, after the output projection (layers.N.mixer of other mixers)
//   layers.N.attention.q.projected, .k.projected, .v     (batch, length, heads, head_dim), with their bias
//   layers.N.attention.q.normed, .k.normed               after the norm of every head, where there is one
//   layers.N.attention.q, .k                             as the scores are computed from them: after the rotation
//   layers.N.attention.scores, .weights   (batch, heads, queries, keys); scores of pairs that are not visible are -inf
//   layers.N.attention.gate               (batch, length, heads, 1 or head_dim), in models with a gate
//   layers.N.attention.heads              every head's output, gated, (batch, length, heads, head_dim)
//   layers.N.mlp.input, .output           after the norm, after the last product
//   layers.N.mlp.inner                    what the last product reads, (batch, length, inner width); not of experts
//   final.residual, final.hidden          before and after the last norm
//
// N counts from 0, as in checkpoints. Attention scores and weights exist only if a hook is registered for them. That
// layer then materializes them instead of calling the fused operator, and its memory is quadratic in the length.
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
  // The returned tensor replaces the activation and must have its shape; an undefined tensor keeps it. Actions run in
  // order, each on the result of the previous one. With autograd enabled, the replacement is part of the graph.
  using Action = std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)>;
  void replace(const std::string& glob, Action action) { actions_.emplace_back(glob, std::move(action)); }
  void read(const std::string& glob, std::function<void(const std::string& name, const at::Tensor& tensor)> look);

  // Called by the forward pass: runs all actions of a hook point and returns the result. Layer -1: the name has no
  // layer number.
  at::Tensor visit(int64_t layer, const char* place, at::Tensor tensor) const;
  bool wants(int64_t layer, const char* place) const;
  // The hooks to pass to forward(): null if there are none.
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
