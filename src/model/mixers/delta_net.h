// DeltaNet and Gated DeltaNet: queries, keys and values through short convolutions, queries and keys of length 1, the
// delta rule with a rate a token and head, with or without a decay that the token chooses, RMSNorm of every head, an
// optional gate.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/parameter_table.h"

namespace lazy {

class DeltaNetMixer final : public Mixer {
 public:
  DeltaNetMixer(const ModelConfig& config, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override { return {&qkvg_, &rates_, &output_}; }
  bool init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                      at::Generator& generator) const override;

 private:
  // silu of a projection, convolved before if there is a convolution. `state`: the convolution's, replaced; may be
  // null.
  at::Tensor convolved(const char* weight, const at::Tensor& x, const ForwardOptions& options, at::Tensor* state) const;
  at::Tensor unit(const at::Tensor& heads) const;  // (B, L, H, K), every head of length 1

  int64_t heads_, key_dim_, value_dim_, chunk_;
  bool convolves_, gate_, decays_;
  double norm_eps_;
  Linear qkvg_, rates_, output_;  // rates: b_proj, a_proj
  ParameterTable table_;
  at::Tensor unit_weight_;
};

}  // namespace lazy
