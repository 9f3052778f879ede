// The neural memory with its projections, gates and output layers, and the common base class of the Titans mixers.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/titans/neural_memory.h"

namespace lazy {

// The gates of the recurrence: step size, momentum and decay. memory_gates() computes them in fp32 from logits (batch,
// length, 3 heads) of any floating-point dtype and a bias (3 heads). The result can be differentiated once.
//
// A step is at most 1 / key_dim and at most 1 / chunk. It is multiplied by (1 - momentum), because momentum accumulates
// the steps of many tokens. The limit 1 / chunk is necessary because all steps of a chunk use gradients at the weights
// at the start of the chunk. With larger steps, a chunk of similar keys overshoots, and a two-layer memory diverges
// within a few chunks.
struct MemoryGates {
  at::Tensor step, log_momentum, log_keep;  // (batch, length, heads); the tokens of a head are contiguous in memory
};
MemoryGates memory_gates(const at::Tensor& logits, const at::Tensor& bias, int64_t key_dim, int64_t chunk);

// Returns the parts of a linear layer, concatenated along out_features, in dtype `type`. The result is
// differentiable if autograd is enabled.
at::Tensor joined_weight(const Linear& linear, at::ScalarType type);

class MemoryBranch {
 public:
  MemoryBranch(const ModelConfig& config, at::Device device);

  // own_parameters() returns the parameters that this class has created. The mixer adds them to its table and then
  // calls bind_parameters(), which reads the remaining parameters of the memory from the table.
  NamedTensors own_parameters() const;
  void bind_parameters(const ParameterTable& table);
  // Implements Mixer::init_parameter for the parameters whose names begin with "memory.". Returns nullopt if the
  // default initialization applies.
  static std::optional<bool> init_parameter(const std::string& name, at::Tensor& tensor, at::Generator& generator);

  // Returns the outputs M_t(q_t) of the memory, (batch, length, heads, value_dim) in the dtype of x. `state` is null or
  // the list of state tensors, which the function updates; an empty list is the state before the first token. `seen`
  // is the number of earlier tokens. `packed` is null or the layout of packed documents, which require a null `state`.
  at::Tensor forward(const NormOutput& x, std::vector<at::Tensor>* state, int64_t seen,
                     const PackedSequences* packed) const;

  std::vector<const Linear*> products() const { return {&qkv_, &gates_}; }
  const MemoryWeights& weights() const { return weights_; }
  const at::Tensor& model_norm() const { return norm_; }  // if undefined, the memory has no norm
  // The weights of the memory for mixers that process one span at a time, in dtype `type`: the concatenated projections
  // of q, k and v, their short convolutions, and the projection and bias of the gates.
  at::Tensor projections(at::ScalarType type) const;  // (3 hidden_size, hidden_size)
  at::Tensor convolutions() const;                    // (3 hidden_size, 1, taps); shape (0) without convolutions
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
  // Computes the output of the mixer, which has the shape of the mixer's input x, from the outputs `answers` (batch,
  // length, heads, value_dim) of the memory.
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
  // Normalizes the output of the memory, (batch, length, hidden_size) of any dtype, and converts it to dtype `type`.
  // The result is the argument `memory` of forward().
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
  // Registers all parameters: the parameters that the memory creates, the tensors of `made`, and newly allocated
  // tensors.
  void register_parameters(NamedTensors made, at::Device device);

  ModelConfig config_;
  MemoryBranch memory_;
  ParameterTable table_;
};

// Returns the parameter table entries q_proj, k_proj and v_proj for the three parts of `qkv`.
NamedTensors qkv_parameters(const Linear& qkv);

}  // namespace lazy
