// Named places in a forward pass where a tensor may be read, or replaced by another: measures read, interventions
// replace.
//
//   embedding.tokens, embedding.positions (tables that are added), embedding   what stands before the first layer
//   layers.N.residual, layers.N.middle    the residual stream before the layer's first and second half
//   layers.N.attention.input, .output     after the norm, after the output projection (layers.N.mixer of other mixers)
//   layers.N.attention.q.projected, .k.projected, .v     (batch, length, heads, head_dim), with their bias
//   layers.N.attention.q.normed, .k.normed               after the norm of every head, where there is one
//   layers.N.attention.q, .k                             as the scores are computed from them: after the rotation
//   layers.N.attention.scores, .weights   (batch, heads, queries, keys); scores of pairs that are not visible are -inf
//   layers.N.attention.heads              every head's output, (batch, length, heads, head_dim)
//   layers.N.mlp.input, .output           after the norm, after the last product
//   final.residual, final.hidden          before and after the last norm
//
// N counts from 0, as in checkpoints. Scores and weights exist only while somebody asks for them: that layer then
// computes by their definition, with memory that grows with the square of the length, instead of by the operator.
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
  // What it returns takes the tensor's place, of the same shape; an undefined tensor leaves it. Later actions see what
  // earlier ones have put there. With a gradient being recorded it is part of the graph.
  using Action = std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)>;
  void replace(const std::string& glob, Action action) { actions_.emplace_back(glob, std::move(action)); }
  void read(const std::string& glob, std::function<void(const std::string& name, const at::Tensor& tensor)> look);

  // For those who compute: the tensor at a place, after everybody's actions. Layer -1 has no number.
  at::Tensor visit(int64_t layer, const char* place, at::Tensor tensor) const;
  bool wants(int64_t layer, const char* place) const;
  // What a pass takes: nothing where nothing is asked.
  const ActivationHooks* or_null() const { return actions_.empty() ? nullptr : this; }

 private:
  std::vector<std::pair<std::string, Action>> actions_;
};

// The probes of one layer, or none: a test of a pointer is all that a pass without them pays.
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

// A name against a pattern of *, ? and [a-z], which match dots too.
bool glob_matches(const std::string& glob, const std::string& name);
// Every name of a model, in the order of a pass.
std::vector<std::string> hook_point_names(const ModelConfig& config);

}  // namespace lazy
