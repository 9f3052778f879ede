#include "model/blocks/adaptive_tables.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/error.h"
#include "model/blocks/log_softmax.h"
#include "model/parameters.h"

namespace lazy {
namespace {

using namespace adaptive_names;

constexpr int64_t kMaxScores = int64_t{1} << 25;  // maximum number of log-probabilities that are in memory at once

}  // namespace

AdaptiveTables::AdaptiveTables(const ModelConfig& c, const at::TensorOptions& options)
    : shape_(c.adaptive), vocab_size_(c.vocab_size), hidden_size_(c.hidden_size), tied_(c.tie_embeddings) {
  for (const ParameterShape& p : adaptive_shapes(c))
    parameters_.emplace_back(p.name, at::zeros(p.shape, options).requires_grad_(true));
}

const at::Tensor& AdaptiveTables::tensor(const char* name, int64_t number) const {
  const std::string wanted = adaptive_name(name, number);
  for (const auto& [known, tensor] : parameters_) {
    if (known == wanted) return tensor;
  }
  fail("model", "adaptive vocabulary: expected a tensor {}, found none", wanted);
}

at::Tensor AdaptiveTables::embed(const at::Tensor& ids) const {
  const double scale = std::sqrt(static_cast<double>(hidden_size_));
  const bool projected = shape_.projected(hidden_size_);
  const auto of_table = [&](int64_t table, const at::Tensor& rows) {
    const at::Tensor row = at::embedding(tensor(kTable, table), rows);
    return projected ? at::linear(row, tensor(kProjection, table)) : row;
  };
  if (shape_.tables() == 1) return of_table(0, ids) * scale;
  const at::Tensor flat = ids.reshape({-1});
  at::Tensor out = at::zeros({flat.size(0), hidden_size_}, tensor(kTable, 0).options().requires_grad(false));
  for (int64_t n = 0; n < shape_.tables(); ++n) {
    const at::Tensor places =
        flat.ge(shape_.begin(n)).logical_and(flat.lt(shape_.end(n, vocab_size_))).nonzero().squeeze(1);
    if (places.numel() > 0)
      out = out.index_copy(0, places, of_table(n, flat.index_select(0, places) - shape_.begin(n)));
  }
  return out.view({ids.size(0), ids.size(1), hidden_size_}) * scale;
}

at::Tensor AdaptiveTables::scores(const at::Tensor& hidden, int64_t cluster) const {
  const bool one = shape_.tables() == 1;
  const int64_t table = one ? 0 : cluster;
  at::Tensor weight = tensor(tied_ ? kTable : kOutTable, table), bias = tensor(kOutBias, table);
  if (one) {
    const int64_t begin = shape_.begin(cluster), rows = shape_.end(cluster, vocab_size_) - begin;
    weight = weight.narrow(0, begin, rows), bias = bias.narrow(0, begin, rows);
  }
  if (cluster == 0 && shape_.clusters() > 1)
    weight = at::cat({weight, tensor(kClusterWeight)}), bias = at::cat({bias, tensor(kClusterBias)});
  at::Tensor x = hidden;
  if (shape_.projected(hidden_size_)) {
    x = at::matmul(
        x, (shape_.ties(cluster) ? tensor(kProjection, table) : tensor(kOutProjection, cluster)).to(x.scalar_type()));
  }
  const at::Tensor y = at::linear(x, weight.to(x.scalar_type()), bias.to(x.scalar_type()));
  return log_softmax_rows(y.scalar_type() == at::kDouble ? y : y.to(at::kFloat));
}

at::Tensor AdaptiveTables::log_probabilities(const at::Tensor& hidden) const {
  const at::Tensor first = scores(hidden, 0);
  const int64_t own = shape_.end(0, vocab_size_);
  std::vector<at::Tensor> parts = {first.narrow(-1, 0, own)};
  for (int64_t n = 1; n < shape_.clusters(); ++n) parts.push_back(first.narrow(-1, own + n - 1, 1) + scores(hidden, n));
  return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AdaptiveTables::cross_entropy(const at::Tensor& hidden,
                                                                             const at::Tensor& labels) const {
  const int64_t count = hidden.size(0), block = std::max<int64_t>(1, kMaxScores / vocab_size_);
  const at::Tensor counted = labels.ne(-100), label = labels.clamp_min(0);
  std::vector<at::Tensor> log_probs, best;
  for (int64_t begin = 0; begin < count; begin += block) {
    const at::Tensor all = log_probabilities(hidden.slice(0, begin, begin + block)),
                     own = label.slice(0, begin, begin + block);
    log_probs.push_back(all.gather(1, own.unsqueeze(1)).squeeze(1));
    best.push_back(all.argmax(1).eq(own));
  }
  const at::Tensor log_prob = at::cat(log_probs) * counted;
  return {-log_prob.sum() / counted.sum(), log_prob.detach(), at::cat(best).logical_and(counted)};
}

}  // namespace lazy
