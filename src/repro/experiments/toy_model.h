// The toy transformer and the synthetic sources of the toy experiments.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lazy::repro {

// The toy transformer: one causal head, no positions, no MLP, no norm, and by default no residual.

struct ToyShape {
  int64_t tokens = 101, width = 2;
  bool residual = false, tied = true;
};

class ToyModel {
 public:
  ToyModel(const ToyShape& shape, uint64_t seed);  // every matrix N(0, 0.02)

  // ids (batch, length) -> weights (batch, length, length), logits (batch, length, tokens):
  // logits_t = (sum_j alpha_tj E_{x_j} W_V W_O [+ E_{x_t}]) E^T
  struct Output {
    at::Tensor weights, logits;
  };
  Output forward(const at::Tensor& ids) const;

  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const { return parameters_; }
  const at::Tensor& embedding() const { return parameters_[0].second; }

 private:
  ToyShape shape_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

// The toy sources: tokens drawn one by one from Zipf's law, or a chain in which the current token
// decides.

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
