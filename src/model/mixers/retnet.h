// Multi-scale retention (RetNet): queries and keys turned by RoPE, a state that fades at a fixed rate in each head,
// RMSNorm of every head, a gate.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/parameter_table.h"

namespace lazy {

class RetNetMixer final : public Mixer {
 public:
  RetNetMixer(const ModelConfig& config, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override { return {&qkvg_, &output_}; }
  bool init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  int64_t heads_, key_dim_, value_dim_, chunk_;
  bool gate_;
  double norm_eps_;
  Linear qkvg_, output_;
  ParameterTable table_;
  at::Tensor log_decay_;  // (heads), float64
};

}  // namespace lazy
