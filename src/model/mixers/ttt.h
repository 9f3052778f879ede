// TTT-Linear and TTT-MLP as token mixers: queries, keys and values turned by RoPE within a mini-batch, a learning rate
// a token and head, the recurrence, LayerNorm, an optional gate.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/parameter_table.h"
#include "model/mixers/ttt/ttt_rule.h"

namespace lazy {

class TttMixer final : public Mixer {
 public:
  TttMixer(const ModelConfig& config, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override;
  bool init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  // The recurrence's inputs, fp32; `places`: of each token in its mini-batch.
  TttInputs inputs(const NormOutput& x, const at::Tensor& places) const;
  at::Tensor parameter(const char* name) const { return table_[std::string("seq_modeling_block.") + name]; }

  int64_t heads_, dim_, mini_batch_;
  double base_rate_, rope_base_;
  Linear qkv_, output_, gate_;
  ParameterTable table_;
  TttWeights weights_;
};

}  // namespace lazy
