#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

Weights normalize(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters) {
  switch (normalizer) {
    case Normalizer::softmax:
      return softmax(score, parameters);
    case Normalizer::elastic:
      return elastic(score, parameters);
    case Normalizer::sparsemax:
      return sparsemax(score, parameters);
    case Normalizer::entmax15:
      return entmax15(score, parameters);
    case Normalizer::sigmoid:
      return sigmoid(score, parameters);
    case Normalizer::softmax_sink:
      return softmax_sink(score, parameters);
  }
  return {};
}

RowGradient normalize_backward(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters,
                               const std::vector<double>& d_weight) {
  switch (normalizer) {
    case Normalizer::softmax:
      return softmax_backward(score, parameters, d_weight);
    case Normalizer::elastic:
      return elastic_backward(score, parameters, d_weight);
    case Normalizer::sparsemax:
      return sparsemax_backward(score, parameters, d_weight);
    case Normalizer::entmax15:
      return entmax15_backward(score, parameters, d_weight);
    case Normalizer::sigmoid:
      return sigmoid_backward(score, parameters, d_weight);
    case Normalizer::softmax_sink:
      return softmax_sink_backward(score, parameters, d_weight);
  }
  return {};
}

}  // namespace lazy::kernels::reference
