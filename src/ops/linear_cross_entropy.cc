#include "ops/linear_cross_entropy.h"

#include "ops/dense_product.h"
#include "ops/fused.h"
#include "ops/rows.h"

namespace lazy::ops {

void check_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
  row_type("linear_cross_entropy", hidden);
  LAZY_CHECK("linear_cross_entropy", hidden.dim() == 2 && weight.dim() == 2 && weight.sym_size(1) == hidden.sym_size(1),
             "hidden (tokens, dim) and weight (vocab, dim), received ", hidden.sym_sizes(), " and ",
             weight.sym_sizes());
  LAZY_CHECK("linear_cross_entropy", weight.scalar_type() == hidden.scalar_type(), "weight with the type of hidden, ",
             hidden.scalar_type(), ", received ", weight.scalar_type());
  LAZY_CHECK("linear_cross_entropy",
             labels.dim() == 1 && labels.sym_size(0) == hidden.sym_size(0) && labels.scalar_type() == at::kLong,
             "labels (tokens) of int64, received ", labels.sym_sizes(), " of ", labels.scalar_type());
  check_device("linear_cross_entropy", "weight", weight, hidden);
  check_device("linear_cross_entropy", "labels", labels, hidden);
}

CrossEntropyOutputs without_gradients(const CrossEntropyGradients& all) {
  return {std::get<0>(all), std::get<1>(all), std::get<2>(all)};
}

at::ScalarType kept_gradient_type(const at::Tensor& input) {
  return input.scalar_type() == at::kHalf ? at::kFloat : input.scalar_type();
}

namespace {

constexpr int64_t kChunkLogits = int64_t{1} << 22;  // logits per chunk: 16 MiB in fp32
// Minimum number of tokens per chunk for any vocabulary size: each chunk reads the whole weight matrix, and products
// with fewer rows are slower (ops/dense_product.h).
constexpr int64_t kMinChunkTokens = 64;

// All matrix products are computed in fp32. Products of two bf16 numbers are exact in fp32, and on a CPU without AMX,
// fp32 is faster than bf16.
CrossEntropyGradients compute(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                              int64_t ignore_index, bool want_hidden, bool want_weight) {
  check_linear_cross_entropy(hidden, weight, labels);
  const KernelGuard guard;  // autocast would round the operands of the products below
  const int64_t tokens = hidden.size(0), vocabulary = weight.size(0);
  const at::Tensor w = weight.to(at::kFloat).contiguous(), target = labels.contiguous();
  const int64_t* label = target.const_data_ptr<int64_t>();
  int64_t counted = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (label[t] == ignore_index) continue;
    LAZY_CHECK("linear_cross_entropy", label[t] >= 0 && label[t] < vocabulary, "labels from 0 to ", vocabulary - 1,
               ", received ", label[t], " at token ", t);
    ++counted;
  }
  const auto f32 = hidden.options().dtype(at::kFloat);
  at::Tensor log_prob = at::zeros({tokens}, f32), correct = at::zeros({tokens}, hidden.options().dtype(at::kBool));
  at::Tensor d_hidden = want_hidden ? at::zeros(hidden.sizes(), hidden.options()) : at::empty({0}, hidden.options());
  at::Tensor d_weight = want_weight ? at::zeros(weight.sizes(), f32) : at::empty({0}, f32);
  const bool want = want_hidden || want_weight;
  const int64_t chunk = std::max(kMinChunkTokens, kChunkLogits / std::max<int64_t>(vocabulary, 1));
  float* log_probs = log_prob.mutable_data_ptr<float>();
  bool* corrects = correct.mutable_data_ptr<bool>();
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const at::Tensor h = hidden.narrow(0, begin, count).to(at::kFloat);
    at::Tensor logits = dense_product(h, w);
    float* data = logits.mutable_data_ptr<float>();
    const float scale = want ? 1 / static_cast<float>(counted) : 0;
    parallel_rows(count, vocabulary, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        if (label[begin + t] == ignore_index) {
          std::fill_n(data + t * vocabulary, vocabulary, 0.0f);
          continue;
        }
        const rows::CrossEntropy row = rows::cross_entropy(data + t * vocabulary, vocabulary, label[begin + t], scale);
        log_probs[begin + t] = row.log_prob;
        corrects[begin + t] = row.correct;
      }
    });
    if (want_hidden) d_hidden.narrow(0, begin, count).copy_(dense_product(logits, w.t()));
    if (want_weight) add_product(d_weight, logits.t(), h);
  }
  const double sum = *log_prob.sum(at::kDouble).const_data_ptr<double>();
  at::Tensor loss = at::full({}, -sum / static_cast<double>(counted), f32);
  return {loss, log_prob, correct, d_hidden, want_weight ? d_weight.to(weight.scalar_type()) : d_weight};
}

CrossEntropyOutputs compute_alone(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                  int64_t ignore_index) {
  return without_gradients(compute(hidden, weight, labels, ignore_index, false, false));
}

// Multiplies the saved gradient by d_loss, the gradient of the loss. `input` is an argument so that computing a second
// derivative raises an error; otherwise the second derivative would silently be zero.
at::Tensor cross_entropy_backward_plain(const at::Tensor& d_loss, const at::Tensor& gradient, const at::Tensor& input) {
  return (gradient * d_loss.to(gradient.scalar_type())).to(input.scalar_type());
}

}  // namespace

LAZY_SCHEMAS(m) {
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, int ignore_index=-100) -> "
      "(Tensor loss, Tensor log_prob, Tensor correct)");
  m.def(
      "linear_cross_entropy_and_gradients(Tensor hidden, Tensor weight, Tensor labels, int ignore_index, "
      "bool want_hidden, bool want_weight) -> "
      "(Tensor loss, Tensor log_prob, Tensor correct, Tensor d_hidden, Tensor d_weight)");
  m.def("linear_cross_entropy_backward(Tensor d_loss, Tensor gradient, Tensor input) -> Tensor");
}
LAZY_KERNELS(CPU, m) {
  m.impl("linear_cross_entropy", LAZY_KERNEL(compute_alone));
  m.impl("linear_cross_entropy_and_gradients", LAZY_KERNEL(compute));
}
LAZY_KERNELS(CompositeExplicitAutograd, m) {
  m.impl("linear_cross_entropy_backward", LAZY_KERNEL(cross_entropy_backward_plain));
}

}  // namespace lazy::ops
