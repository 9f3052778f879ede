// The tensors of a vocabulary in clusters (model/adaptive_vocabulary.h), what a token is embedded as, and the
// log-probabilities of the next one.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace lazy {

class AdaptiveTables {
 public:
  // Zeros, as `options` say: fp32 in models.
  AdaptiveTables(const ModelConfig& config, const at::TensorOptions& options);
  // By their names (adaptive_names), in the order of adaptive_shapes.
  const NamedTensors& parameters() const { return parameters_; }
  NamedTensors& parameters() { return parameters_; }

  // ids (batch, length) int64 -> (batch, length, hidden_size): the cluster's row through its projection, times
  // sqrt(hidden_size).
  at::Tensor embed(const at::Tensor& ids) const;
  // (..., hidden_size) -> (..., vocab_size) fp32 (fp64 of fp64 tables): a softmax over the first cluster and the names
  // of the others, times a softmax within each of them.
  at::Tensor log_probabilities(const at::Tensor& hidden) const;
  // As ops::linear_cross_entropy: mean loss, log-probabilities of labels, whether they are the likeliest.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy(const at::Tensor& hidden,
                                                               const at::Tensor& labels) const;

 private:
  const at::Tensor& tensor(const char* name, int64_t number = -1) const;
  at::Tensor scores(const at::Tensor& hidden, int64_t cluster) const;

  AdaptiveVocabulary shape_;
  int64_t vocab_size_, hidden_size_;
  bool tied_;
  NamedTensors parameters_;
};

}  // namespace lazy
