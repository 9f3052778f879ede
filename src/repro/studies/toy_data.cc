#include "repro/studies/toy_data.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

namespace lazy::repro {

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
