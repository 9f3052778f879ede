// Mamba2's block (SSD): one projection in, a short convolution, a state that fades and takes in by a step that each
// token and head chooses, a skip, a gate, RMSNorm.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/parameter_table.h"

namespace lazy {

class Mamba2Mixer final : public Mixer {
 public:
  Mamba2Mixer(const ModelConfig& config, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override { return {&input_, &output_}; }
  bool init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  at::Tensor normed(const at::Tensor& y) const;  // (B, L, inner), each group by itself

  int64_t heads_, head_dim_, state_size_, groups_, chunk_;
  double norm_eps_;
  Linear input_, output_;
  ParameterTable table_;
};

}  // namespace lazy
