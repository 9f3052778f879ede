// Adaptive input embeddings and the adaptive softmax: their parameters, the embedding lookup and the log-probabilities.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace lazy {

class AdaptiveTables {
 public:
  // Allocates zero-initialized parameters with `options` (fp32 in models).
  AdaptiveTables(const ModelConfig& config, const at::TensorOptions& options);
  // The parameters, with the names that namespace adaptive_names defines, in the order of adaptive_shapes().
  const NamedTensors& parameters() const { return parameters_; }
  NamedTensors& parameters() { return parameters_; }

  // Returns the embeddings (batch, length, hidden_size) of `ids` (batch, length) int64. Each token's row is looked up
  // in the table of its cluster, projected to hidden_size and scaled by sqrt(hidden_size).
  at::Tensor embed(const at::Tensor& ids) const;
  // Maps `hidden` (..., hidden_size) to log-probabilities (..., vocab_size) in fp32 (fp64 for fp64 tables). The
  // log-probability of a token is the sum of the log-probability of its cluster and the log-probability of the token
  // within the cluster.
  at::Tensor log_probabilities(const at::Tensor& hidden) const;
  // Returns the same three results as ops::linear_cross_entropy: the mean loss, the log-probability of each label, and
  // whether each label is the most probable token.
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
