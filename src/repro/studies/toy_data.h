// The toy sources (SPEC section 6.2): tokens drawn one by one from Zipf's law, or a chain in which the current token
// decides.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <string>

namespace lazy::repro {

struct ToySource {
  at::Tensor first;  // (V) float64: probabilities of a sequence's first token
  at::Tensor
      transitions;   // (V, V) float64: of the next token, a row a current one; the same rows where nothing matters
  double floor = 0;  // nats a token: what a model that knows the source loses
  // (count, length) int64
  at::Tensor sample(int64_t count, int64_t length, at::Generator generator) const;
};

// p_k proportional to (k + 1)^-alpha.
ToySource unigram_source(int64_t vocabulary, double alpha);
// Rows of softmax(A B / sqrt(rank)), A (V, rank) and B (rank, V) standard normal; from the stationary distribution on.
ToySource bigram_source(int64_t vocabulary, int64_t rank, uint64_t seed);

}  // namespace lazy::repro
