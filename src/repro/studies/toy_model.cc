#include "repro/studies/toy_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

namespace lazy::repro {

ToyModel::ToyModel(const ToyShape& shape, uint64_t seed) : shape_(shape) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto add = [&](const char* name, int64_t rows) {
    parameters_.emplace_back(
        name,
        (0.02 * at::randn({rows, shape.width}, generator, at::TensorOptions().dtype(at::kFloat))).requires_grad_(true));
  };
  add("embedding", shape.tokens);
  for (const char* name : {"query", "key", "value", "output"}) add(name, shape.width);
  if (!shape.tied) add("head", shape.tokens);
}

ToyModel::Output ToyModel::forward(const at::Tensor& ids) const {
  const auto matrix = [&](size_t n) { return parameters_[n].second; };
  const at::Tensor x = at::embedding(matrix(0), ids);
  const at::Tensor q = at::matmul(x, matrix(1)), k = at::matmul(x, matrix(2)), v = at::matmul(x, matrix(3));
  const at::Tensor later = at::ones({ids.size(1), ids.size(1)}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(double(shape_.width));
  const at::Tensor weights = at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
  at::Tensor y = at::matmul(at::matmul(weights, v), matrix(4));
  if (shape_.residual) y = y + x;
  return {weights, at::matmul(y, matrix(shape_.tied ? 0 : 5).t())};
}

}  // namespace lazy::repro
