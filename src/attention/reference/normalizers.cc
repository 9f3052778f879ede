// The normalizers and their derivatives in float64. Tests compare the CPU and CUDA kernels with these functions.
#include "attention/reference/normalizers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

namespace lazy::kernels::reference {

namespace {

// sparsemax and entmax15 sort the scores, and sorting does not handle NaN. For a row with a NaN score, they therefore
// return nan_row, in which all weights and the statistic are NaN.
bool has_nan(const std::vector<double>& score) {
  return std::any_of(score.begin(), score.end(), [](double s) { return std::isnan(s); });
}
Weights nan_row(size_t size) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {std::vector<double>(size, nan), nan, static_cast<int64_t>(size)};
}

// The exponential family. The probabilities are p_j = exp(s_j - lse), where lse is the log-sum-exp of the scores and,
// for softmax_sink and elastic_sink, of a learned sink z: one more score that takes part in the sum and has no value
// vector (gpt-oss). The weights are p_j (softmax, softmax_sink) or m_j (p_j + offset) with m_j = [p_j + offset > 0]
// (elastic, arXiv 2601.00919, eq. 5, and elastic_sink). With g = m d_weight, p_z = exp(z - lse) and delta = sum_k p_k
// g_k:
//   ds_j = p_j (g_j - delta),  d_offset = sum_j g_j,  dz = -p_z delta.
// If the offset is not negative, every visible key is counted as a key with nonzero weight, even if its probability
// underflows to zero. A NaN is also counted.

constexpr double kNoSink = -std::numeric_limits<double>::infinity();

double sink_of(Normalizer normalizer, const RowParameters& parameters) {
  return traits(normalizer).takes_sink ? parameters.sink : kNoSink;
}
double offset_of(Normalizer normalizer, const RowParameters& parameters) {
  return traits(normalizer).takes_tau ? parameters.offset : 0;
}
bool alive(double probability, double offset) { return offset >= 0 || !(probability + offset <= 0); }

// Returns the probabilities and lse. Weights::alive is the number of all keys.
Weights probabilities(const std::vector<double>& score, double sink) {
  const double largest = std::max(sink, *std::max_element(score.begin(), score.end()));
  double sum = sink > kNoSink ? std::exp(sink - largest) : 0;
  for (double s : score) sum += std::exp(s - largest);
  Weights row;
  row.lse = largest + std::log(sum);
  for (double s : score) row.weight.push_back(std::exp(s - largest) / sum);
  row.alive = static_cast<int64_t>(score.size());
  return row;
}

Weights exponential(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters) {
  Weights row = probabilities(score, sink_of(normalizer, parameters));
  const double offset = offset_of(normalizer, parameters);
  row.alive = 0;
  for (double& weight : row.weight) {
    const bool keep = alive(weight, offset);
    row.alive += keep;
    weight = keep ? weight + offset : 0;
  }
  return row;
}

RowGradient exponential_backward(Normalizer normalizer, const std::vector<double>& score,
                                 const RowParameters& parameters, const std::vector<double>& d_weight) {
  const double sink = sink_of(normalizer, parameters), offset = offset_of(normalizer, parameters);
  const Weights p = probabilities(score, sink);
  std::vector<double> g(score.size());
  double delta = 0;
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    g[j] = alive(p.weight[j], offset) ? d_weight[j] : 0;
    delta += p.weight[j] * g[j];
    gradient.d_offset += g[j];
  }
  for (size_t j = 0; j < score.size(); ++j) gradient.d_score.push_back(p.weight[j] * (g[j] - delta));
  gradient.d_sink = -std::exp(sink - p.lse) * delta;
  return gradient;
}

// Sparsemax (Martins and Astudillo 2016): weight_j = max(s_j - theta, 0), with theta such that the weights sum to one.
// With g = d_weight: ds_j = g_j - (mean of g over the keys with nonzero weight) if weight_j is nonzero, otherwise 0.

Weights sparsemax(const std::vector<double>& score, const RowParameters&) {
  if (has_nan(score)) return nan_row(score.size());
  std::vector<double> sorted = score;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double sum = 0, theta = 0;
  for (size_t k = 0; k < sorted.size(); ++k) {
    sum += sorted[k];
    if (static_cast<double>(k + 1) * sorted[k] > sum - 1) theta = (sum - 1) / static_cast<double>(k + 1);
  }
  Weights row;
  row.lse = theta;
  for (double s : score) {
    row.weight.push_back(std::max(s - theta, 0.0));
    row.alive += row.weight.back() > 0;
  }
  return row;
}

RowGradient sparsemax_backward(const std::vector<double>& score, const RowParameters& parameters,
                               const std::vector<double>& d_weight) {
  const Weights row = sparsemax(score, parameters);
  double mean = 0;
  for (size_t j = 0; j < score.size(); ++j) mean += row.weight[j] > 0 ? d_weight[j] : row.weight[j];
  mean /= static_cast<double>(row.alive);
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j)
    gradient.d_score.push_back(row.weight[j] > 0 ? d_weight[j] - mean : row.weight[j]);
  return gradient;
}

// Entmax with alpha = 1.5 (Peters, Niculae and Martins 2019): weight_j = max(s_j / 2 - theta, 0)^2, with theta such
// that the weights sum to one. With g = d_weight and r = sqrt(weight): ds_j = r_j (g_j - sum r g / sum r).

Weights entmax15(const std::vector<double>& score, const RowParameters&) {
  if (has_nan(score)) return nan_row(score.size());
  const double largest = *std::max_element(score.begin(), score.end());
  std::vector<double> sorted;
  for (double s : score) sorted.push_back((s - largest) / 2);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double sum = 0, sum_squares = 0, theta = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double k = static_cast<double>(i + 1);
    sum += sorted[i];
    sum_squares += sorted[i] * sorted[i];
    const double mean = sum / k, variance = k * (sum_squares / k - mean * mean);
    const double candidate = mean - std::sqrt(std::max((1 - variance) / k, 0.0));
    if (candidate <= sorted[i]) theta = candidate;
  }
  Weights row;
  row.lse = theta + largest / 2;
  for (double s : score) {
    const double root = std::max((s - largest) / 2 - theta, 0.0);
    row.weight.push_back(root * root);
    row.alive += root > 0;
  }
  return row;
}

RowGradient entmax15_backward(const std::vector<double>& score, const RowParameters& parameters,
                              const std::vector<double>& d_weight) {
  const Weights row = entmax15(score, parameters);
  double sum_root = 0, sum_root_g = 0;
  for (size_t j = 0; j < score.size(); ++j) {
    sum_root += std::sqrt(row.weight[j]);
    sum_root_g += std::sqrt(row.weight[j]) * d_weight[j];
  }
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    gradient.d_score.push_back(std::sqrt(row.weight[j]) * (d_weight[j] - sum_root_g / sum_root));
  }
  return gradient;
}

// Sigmoid attention (Ramapuram et al. 2024): weight_j = 1 / (1 + exp(-(s_j + beta))), with beta = sigmoid_bias. With g
// = d_weight: ds_j = weight_j (1 - weight_j) g_j.

Weights sigmoid(const std::vector<double>& score, const RowParameters& parameters) {
  Weights row;
  for (double s : score) row.weight.push_back(1 / (1 + std::exp(-(s + parameters.sigmoid_bias))));
  row.alive = static_cast<int64_t>(score.size());
  return row;
}

RowGradient sigmoid_backward(const std::vector<double>& score, const RowParameters& parameters,
                             const std::vector<double>& d_weight) {
  const Weights row = sigmoid(score, parameters);
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    gradient.d_score.push_back(row.weight[j] * (1 - row.weight[j]) * d_weight[j]);
  }
  return gradient;
}

// Softpick (arXiv 2504.20966): weight_j = max(exp(s_j) - 1, 0) / (sum_k |exp(s_k) - 1| + eps exp(m)), with m =
// max(largest score, 0) and eps = kSoftpickEpsilon. It is computed from exp(s - m) - exp(-m), which cannot overflow.
//
// In the publication, m is the row's largest score. In rows without a positive score, exp(s - m) - exp(-m) could then
// overflow; m is therefore at least 0 here, which changes no weight, because all weights of such rows are zero. The
// publication's denominator has eps in place of eps exp(m). Because the denominator is at least exp(m) - 1, this
// changes a weight by a relative difference of at most 1e-8.
//
// A score of -inf is treated as masked. lse = m + ln(denominator / exp(m)), so that weight_j = max(exp(s_j - lse) -
// exp(-lse), 0). With g = d_weight, p_j = exp(s_j - lse) and delta = sum_k weight_k g_k, and with eps exp(m) treated as
// a constant:
//   ds_j = p_j (g_j - delta) for s_j > 0,  p_j delta for s_j < 0,  0 for s_j = 0.
// A key with s_j > 0 is counted as a key with nonzero weight, even if its weight underflows. A NaN is also counted.

Weights softpick(const std::vector<double>& score, const RowParameters&) {
  const double m = std::max(0.0, *std::max_element(score.begin(), score.end()));
  auto excess = [m](double s) {
    return s == -std::numeric_limits<double>::infinity() ? 0 : std::exp(s - m) - std::exp(-m);
  };
  double sum = kSoftpickEpsilon;
  for (double s : score) sum += std::abs(excess(s));
  Weights row;
  row.lse = m + std::log(sum);
  for (double s : score) {
    const bool alive = !(s <= 0);
    row.weight.push_back(alive ? excess(s) / sum : 0);
    row.alive += alive;
  }
  return row;
}

RowGradient softpick_backward(const std::vector<double>& score, const RowParameters& parameters,
                              const std::vector<double>& d_weight) {
  const Weights row = softpick(score, parameters);
  double delta = 0;
  for (size_t j = 0; j < score.size(); ++j) {
    if (!(score[j] <= 0)) delta += row.weight[j] * d_weight[j];
  }
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    const double p = std::exp(score[j] - row.lse);
    gradient.d_score.push_back(score[j] == 0 ? 0 * delta : score[j] < 0 ? p * delta : p * (d_weight[j] - delta));
  }
  return gradient;
}

}  // namespace

// With m = largest score and e_j = exp(s_j - m), the entropy of the softmax of the scores is
//   ln(sum_j e_j) - (sum_j e_j (s_j - m)) / (sum_j e_j).
// Using s_j - m instead of s_j avoids catastrophic cancellation.
ScoreStatistics score_statistics(const std::vector<double>& score) {
  const double largest = *std::max_element(score.begin(), score.end());
  double sum = 0, weighted = 0;
  for (double s : score) {
    const double e = std::exp(s - largest);
    sum += e;
    if (e != 0) weighted += e * (s - largest);  // for a score of -inf, the product 0 * -inf would be NaN
  }
  if (std::isnan(sum)) return {sum, sum};
  return {largest, std::log(sum) - weighted / sum};
}

Weights normalize(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters) {
  switch (normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink:
      return exponential(normalizer, score, parameters);
    case Normalizer::sparsemax:
      return sparsemax(score, parameters);
    case Normalizer::entmax15:
      return entmax15(score, parameters);
    case Normalizer::sigmoid:
      return sigmoid(score, parameters);
    case Normalizer::softpick:
      return softpick(score, parameters);
  }
  throw std::invalid_argument(unknown_normalizer(normalizer));
}

RowGradient normalize_backward(Normalizer normalizer, const std::vector<double>& score, const RowParameters& parameters,
                               const std::vector<double>& d_weight) {
  switch (normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink:
      return exponential_backward(normalizer, score, parameters, d_weight);
    case Normalizer::sparsemax:
      return sparsemax_backward(score, parameters, d_weight);
    case Normalizer::entmax15:
      return entmax15_backward(score, parameters, d_weight);
    case Normalizer::sigmoid:
      return sigmoid_backward(score, parameters, d_weight);
    case Normalizer::softpick:
      return softpick_backward(score, parameters, d_weight);
  }
  throw std::invalid_argument(unknown_normalizer(normalizer));
}

}  // namespace lazy::kernels::reference
