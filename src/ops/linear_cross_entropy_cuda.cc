// lazy::linear_cross_entropy on NVIDIA GPUs. Each chunk of logits is computed in fp32 and overwritten by its gradient
// in the dtype of the inputs, for the two products of the backward pass. Does not synchronize.
#include "ops/cuda/rows.h"
#include "ops/cuda_stream.h"
#include "ops/fused.h"
#include "ops/linear_cross_entropy.h"

namespace lazy::ops {

namespace {

// Number of logits per chunk. For each chunk, the accumulator of d_weight is read and written once; with smaller
// chunks, this memory traffic would take more time than the matrix products.
constexpr int64_t kChunkLogitsCuda = kLogitsBytesCuda / 4;
constexpr int64_t kPadding = 64;  // rows of logits are padded to multiples of 256 bytes for fast products

// Computes out = a b, or out += a b if `add` is true. a and b are 16-bit matrices (accumulated in fp32) or fp32
// matrices.
void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add = false) {
  if (add) {
    add_product(out, a, b);
  } else if (a.scalar_type() == at::kFloat) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, at::kFloat);
  }
}

struct Counts {
  at::Tensor counted, scale, valid;
};

// Counts the labels that are not ignored and checks that they are in the vocabulary. The result `scale` converts
// gradients of the logits to gradients of the mean loss.
Counts count(const at::Tensor& labels, int64_t vocabulary, int64_t ignore_index, float gradient_scale,
             cudaStream_t stream) {
  const auto of = [&](at::ScalarType type) { return at::empty({}, labels.options().dtype(type)); };
  Counts counts{of(at::kDouble), of(at::kFloat), of(at::kBool)};
  cuda::count_labels({labels.const_data_ptr<int64_t>(), labels.numel(), vocabulary, ignore_index,
                      counts.counted.mutable_data_ptr<double>(), counts.scale.mutable_data_ptr<float>(), gradient_scale,
                      counts.valid.mutable_data_ptr<bool>()},
                     stream);
  at::_assert_async(counts.valid, c10::str("lazy::linear_cross_entropy: expected labels from 0 to ", vocabulary - 1,
                                           " or ", ignore_index, ", received a label out of range"));
  return counts;
}

CrossEntropyGradients compute_cuda(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                   int64_t ignore_index, bool want_hidden, bool want_weight) {
  check_linear_cross_entropy(hidden, weight, labels);
  const int64_t tokens = hidden.size(0), dim = hidden.size(1), vocabulary = weight.size(0);
  LAZY_CHECK("linear_cross_entropy", vocabulary < int64_t{1} << 30, "a vocabulary below 2^30, received ", vocabulary);
  const DeviceGuard guard(hidden);
  const KernelGuard kernel;
  const cudaStream_t stream = current_stream();
  const at::Tensor h = hidden.contiguous(), w = weight.contiguous(), target = labels.contiguous();
  const auto f32 = hidden.options().dtype(at::kFloat);
  const bool want = want_hidden || want_weight, half = hidden.scalar_type() == at::kHalf;

  cuda::CrossEntropy rows{};
  rows.gradient = want;
  rows.type = row_type("linear_cross_entropy", hidden);
  rows.gradient_scale = half ? 32768 : 1;  // without this factor, small probabilities would underflow in float16
  const Counts counts = count(target, vocabulary, ignore_index, rows.gradient_scale, stream);

  at::Tensor log_prob = at::empty({tokens}, f32), correct = at::empty({tokens}, hidden.options().dtype(at::kBool));
  at::Tensor d_hidden = want_hidden ? at::empty({tokens, dim}, hidden.options().dtype(kept_gradient_type(hidden)))
                                    : at::empty({0}, hidden.options());
  at::Tensor d_weight = !want_weight ? at::empty({0}, f32)
                        : tokens > 0 ? at::empty({vocabulary, dim}, f32)
                                     : at::zeros({vocabulary, dim}, f32);

  // All chunks have about the same number of tokens, a multiple of the tile size of the matrix products.
  const int64_t stride = std::max<int64_t>(1, (vocabulary + kPadding - 1) / kPadding) * kPadding;
  const int64_t most = std::max<int64_t>(1, kChunkLogitsCuda / stride), chunks = (tokens + most - 1) / most;
  const int64_t chunk = chunks <= 1 ? tokens : std::min(most, ((tokens + chunks - 1) / chunks + 127) / 128 * 128);
  const at::Tensor memory = at::empty({chunk, stride}, f32);
  rows.logits = memory.mutable_data_ptr<float>();
  rows.stride = stride;
  rows.vocabulary = vocabulary;
  rows.ignore_index = ignore_index;
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    rows.tokens = std::min(chunk, tokens - begin);
    const at::Tensor part = h.narrow(0, begin, rows.tokens);
    multiply(memory.narrow(0, 0, rows.tokens).narrow(1, 0, vocabulary), part, w.t());
    rows.label = target.const_data_ptr<int64_t>() + begin;
    rows.log_prob = log_prob.mutable_data_ptr<float>() + begin;
    rows.correct = correct.mutable_data_ptr<bool>() + begin;
    cuda::cross_entropy(rows, stream);
    const at::Tensor gradient = memory.view(hidden.scalar_type()).narrow(0, 0, rows.tokens).narrow(1, 0, vocabulary);
    if (want_hidden) {
      const at::Tensor product = at::empty({rows.tokens, dim}, f32);
      multiply(product, gradient, w);
      at::Tensor out = d_hidden.narrow(0, begin, rows.tokens);
      at::mul_out(out, product, counts.scale);
    }
    if (want_weight) multiply(d_weight, gradient.t(), part, begin > 0);
  }
  if (want_weight) {
    const at::ScalarType type = kept_gradient_type(weight);
    at::Tensor scaled = type == at::kFloat ? d_weight : at::empty({vocabulary, dim}, weight.options());
    d_weight = at::mul_out(scaled, d_weight, counts.scale);
  }
  at::Tensor loss = at::empty({}, f32);
  cuda::mean_loss(log_prob.const_data_ptr<float>(), tokens, counts.counted.const_data_ptr<double>(),
                  loss.mutable_data_ptr<float>(), stream);
  return {loss, log_prob, correct, d_hidden, d_weight};
}

CrossEntropyOutputs compute_alone_cuda(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                       int64_t ignore_index) {
  return without_gradients(compute_cuda(hidden, weight, labels, ignore_index, false, false));
}

}  // namespace

LAZY_KERNELS(CUDA, m) {
  m.impl("linear_cross_entropy", LAZY_KERNEL(compute_alone_cuda));
  m.impl("linear_cross_entropy_and_gradients", LAZY_KERNEL(compute_cuda));
}

}  // namespace lazy::ops
