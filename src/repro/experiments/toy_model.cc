#include "repro/experiments/toy_model.h"

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

at::Tensor ToySource::sample(int64_t count, int64_t length, at::Generator generator) const {
  const at::Tensor out = at::empty({count, length}, at::kLong);
  out.select(1, 0).copy_(at::multinomial(first, count, /*replacement=*/true, generator));
  for (int64_t t = 1; t < length; ++t) {
    out.select(1, t).copy_(
        at::multinomial(transitions.index_select(0, out.select(1, t - 1)), 1, true, generator).squeeze(1));
  }
  return out;
}

ToySource unigram_source(int64_t vocabulary, double alpha) {
  at::Tensor p = at::arange(1, vocabulary + 1, at::kDouble).pow(-alpha);
  p = p / p.sum();
  return {p, p.expand({vocabulary, vocabulary}).contiguous(), -at::xlogy(p, p).sum().item<double>()};
}

ToySource bigram_source(int64_t vocabulary, int64_t rank, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor a = at::randn({vocabulary, rank}, generator, wide),
                   b = at::randn({rank, vocabulary}, generator, wide);
  const at::Tensor P = at::softmax(at::mm(a, b) / std::sqrt(double(rank)), 1);
  at::Tensor stationary = at::full({vocabulary}, 1.0 / double(vocabulary), wide);
  for (int step = 0; step < 1000; ++step) stationary = at::mv(P.t(), stationary);
  return {stationary, P, -(stationary.unsqueeze(1) * at::xlogy(P, P)).sum().item<double>()};
}

}  // namespace lazy::repro
