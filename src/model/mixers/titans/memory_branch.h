// The neural memory with its projections, gates and output layers, and the common base class of the Titans mixers.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/titans/neural_memory.h"

namespace lazy {

// The recurrence's gates in fp32 from their logits (batch, length, 3 heads) of any floating type and a bias (3 heads):
// step, momentum, decay. Differentiable once. A step is at most 1 / key_dim and at most 1 / chunk, and it is multiplied
// by (1 - momentum) to offset the accumulation of momentum. All steps of a chunk use gradients at the weights of its
// start, so with larger steps a chunk of similar keys overshoots and a two-layer memory diverges within a few chunks.
struct MemoryGates {
  at::Tensor step, log_momentum, log_keep;  // (batch, length, heads); the tokens of a head lie side by side
};
MemoryGates memory_gates(const at::Tensor& logits, const at::Tensor& bias, int64_t key_dim, int64_t chunk);

// The parts of a linear layer concatenated along out_features, in `type`; differentiable if autograd is enabled.
at::Tensor joined_weight(const Linear& linear, at::ScalarType type);

class MemoryBranch {
 public:
  MemoryBranch(const ModelConfig& config, at::Device device);

  // The parameters that this class creates, for the mixer's table; and binding of the others once the table exists.
  NamedTensors own_parameters() const;
  void bind_parameters(const ParameterTable& table);
  // As Mixer::init_parameter, for parameters named memory.*; nullopt: the default initialization applies.
  static std::optional<bool> init_parameter(const std::string& name, at::Tensor& tensor, at::Generator& generator);

  // M_t(q_t), (batch, length, heads, value_dim) of x's dtype. `state`: null, or a list that is filled if empty and
  // continued otherwise. seen: number of earlier tokens. `packed`: null, or the layout of packed documents, without a
  // state.
  at::Tensor forward(const NormOutput& x, std::vector<at::Tensor>* state, int64_t seen,
                     const PackedSequences* packed) const;

  std::vector<const Linear*> products() const { return {&qkv_, &gates_}; }
  const MemoryWeights& weights() const { return weights_; }
  const at::Tensor& model_norm() const { return norm_; }  // undefined: none
  // For mixers that run span by span: query, key and value projections concatenated, in the compute dtype.
  at::Tensor projections(at::ScalarType type) const;  // (3 hidden_size, hidden_size)
  at::Tensor convolutions() const;                    // (3 hidden_size, 1, taps); (0) without convolutions
  at::Tensor gate_weight(at::ScalarType type) const;  // (3 heads, hidden_size)
  at::Tensor gate_bias() const;                       // (3 heads)

 private:
  int64_t heads_, chunk_;
  Linear qkv_, gates_;
  std::array<at::Tensor, 3> convolutions_, biases_;
  MemoryWeights weights_;
  at::Tensor norm_;
};

class MemoryOutput {
 public:
  MemoryOutput(const ModelConfig& config, at::Device device);
  NamedTensors own_parameters() const;
  std::vector<const Linear*> products() const;
  void bind_parameters(const ParameterTable& table);
  // answers (batch, length, heads, value_dim), x the mixer's input -> the shape of x
  at::Tensor forward(const at::Tensor& answers, const NormOutput& x) const;

 private:
  double eps_;
  Linear gate_, output_;
  at::Tensor norm_;
};

class BranchProduct {
 public:
  BranchProduct(const ModelConfig& config, at::Device device);
  NamedTensors own_parameters() const { return {{"o_proj.weight", output_.parts()[0]}}; }
  const Linear& output() const { return output_; }
  void bind_parameters(const ParameterTable& table);
  // (batch, length, hidden_size) of any dtype -> the same shape in `type`; memory: what normalized() returned.
  at::Tensor normalized(const at::Tensor& memory, at::ScalarType type) const;
  at::Tensor forward(const at::Tensor& attention, const at::Tensor& memory, at::ScalarType type) const;

 private:
  double eps_;
  Linear output_;
  at::Tensor attention_norm_, memory_norm_;
};

class TitansMixer : public Mixer {
 public:
  NamedTensors parameters() const override { return table_.all(); }
  bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                      at::Generator& generator) const override;

 protected:
  TitansMixer(const ModelConfig& config, at::Device device) : config_(config), memory_(config, device) {}
  // Registers all parameters: the memory's, those of `made`, and newly allocated ones.
  void register_parameters(NamedTensors made, at::Device device);

  ModelConfig config_;
  MemoryBranch memory_;
  ParameterTable table_;
};

// q_proj, k_proj and v_proj of attention, as entries of the parameter table.
NamedTensors qkv_parameters(const Linear& qkv);

}  // namespace lazy
