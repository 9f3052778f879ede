// The toy transformer and the synthetic token sources of the toy experiments.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lazy::repro {

// The toy transformer has one causal attention head and no positions, MLP or norm; by default it has no residual
// connection.

struct ToyShape {
  int64_t tokens = 101, width = 2;
  bool residual = false, tied = true;
};

class ToyModel {
 public:
  ToyModel(const ToyShape& shape, uint64_t seed);  // initializes every matrix from N(0, 0.02)

  // Maps ids (batch, length) to weights (batch, length, length) and logits (batch, length, tokens):
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

// The toy token sources generate independent draws from Zipf's law, or a Markov chain in which the current token
// determines the distribution of the next token.

struct ToySource {
  at::Tensor first;  // (V) float64: probabilities of the first token of a sequence
  at::Tensor
      transitions;   // (V, V) float64: next-token probabilities, one row per current token; equal rows if independent
  double floor = 0;  // loss in nats per token of a model that knows the source
  // Returns (count, length) int64 token ids.
  at::Tensor sample(int64_t count, int64_t length, at::Generator generator) const;
};

// Returns a source of independent tokens with p_k proportional to (k + 1)^-alpha.
ToySource unigram_source(int64_t vocabulary, double alpha);
// Returns a Markov chain whose transition rows are softmax(A B / sqrt(rank)), with A (V, rank) and B (rank, V) standard
// normal. The first token follows the stationary distribution.
ToySource bigram_source(int64_t vocabulary, int64_t rank, uint64_t seed);

}  // namespace lazy::repro
