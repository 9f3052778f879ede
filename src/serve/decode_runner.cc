#include "serve/decode_runner.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "model/forward_options.h"
#include "ops/pinned_copy.h"
#include "ops/skinny_gemm.h"
#include "serve/generation.h"
#include "serve/padded_sizes.h"

namespace lazy {

namespace {

// Minimum number of pages per row of the block table. Narrower tables are padded to this width.
constexpr int64_t kMinWidth = 64;

at::Tensor host_tensor(at::IntArrayRef shape, at::ScalarType type, bool pinned) {
  return at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(pinned));
}

}  // namespace

// The inputs of one step, as views of parts of the device buffer input_. send() copies all of them from the host in one
// transfer.
struct DecodeRunner::Inputs {
  at::Tensor slots, positions, lengths, places, numbers, table;
};

DecodeRunner::DecodeRunner(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t slots, bool record)
    : model_(model),
      pages_(pages),
      page_size_(page_size),
      slots_(slots),
      // Passes of mixture-of-experts models are not captured as CUDA graphs, because the host must read which experts
      // received tokens before it can launch the kernels of these experts.
      recorded_(model.device(), record && model.config().mlp.kind != MlpKind::experts, "serve: steps") {
  const ModelConfig& c = model.config();
  const at::TensorOptions numbers = at::TensorOptions().dtype(at::kLong).device(model.device());
  // Each sequence is one row of a step. If the skinny GEMM supports the model, it computes each row independently of
  // the other rows. Otherwise padding gives every step exactly kOneShape rows, so that the batch size does not change
  // the results.
  const bool by_rows = ops::supports_skinny_gemm(at::empty({1, c.hidden_size}, numbers.dtype(model.compute_dtype())));
  constexpr int64_t kOneShape = 16;
  const int64_t most = model.device().is_cuda() ? ops::kMaxSkinnyRowsCuda : ops::kMaxSkinnyRowsCpu;
  most_rows_ = by_rows ? std::min(power_above(slots), most) : kOneShape;
  least_rows_ = by_rows ? 1 : kOneShape;
  last_ = at::zeros({slots + 1}, numbers);
  tokens_ = at::zeros({most_rows_}, numbers);
  logprobs_ = at::zeros({most_rows_}, numbers.dtype(at::kFloat));
  const int64_t likely = std::min(kMaxLikely, c.vocab_size);
  likely_ids_ = at::zeros({most_rows_, likely}, numbers);
  likely_ = at::zeros({most_rows_, likely}, numbers.dtype(at::kFloat));
  const int64_t width = std::max(power_above(pages.keys.front().size(0)), kMinWidth);
  input_ = at::zeros({most_rows_ * (4 + ops::kSampleNumberCount + width)}, numbers);
}

DecodeRunner::Shape DecodeRunner::shape_of(std::span<const DecodeRow> rows, int64_t padded, int64_t width) {
  Shape shape{.rows = padded, .width = width, .scored = false, .adjusted = false};
  for (const DecodeRow& row : rows) {
    shape.scored |= row.logprobs >= 0;
    shape.adjusted |= row.how.adjusted;
  }
  return shape;
}

DecodeRunner::Inputs DecodeRunner::inputs(const Shape& shape) const {
  const int64_t rows = shape.rows, width = shape.width;
  int64_t begin = 0;
  const auto next = [&](int64_t size) {
    begin += size;
    return input_.narrow(0, begin - size, size);
  };
  Inputs in;
  for (at::Tensor* t : {&in.slots, &in.positions, &in.lengths, &in.places}) *t = next(rows);
  in.numbers = next(rows * ops::kSampleNumberCount).view({rows, ops::kSampleNumberCount});
  in.table = next(rows * width).view({rows, width});
  return in;
}

void DecodeRunner::send(std::span<const DecodeRow> rows, const Shape& shape) {
  const int64_t padded = shape.rows, width = shape.width;
  const int64_t size = padded * (4 + ops::kSampleNumberCount + width);
  const at::Tensor host = host_tensor({size}, at::kLong, input_.is_cuda());
  auto* const to = host.mutable_data_ptr<int64_t>();
  std::fill(to, to + size, 0);
  int64_t *slots = to, *positions = to + padded, *lengths = to + 2 * padded, *places = to + 3 * padded,
          *numbers = to + 4 * padded, *table = numbers + ops::kSampleNumberCount * padded;
  std::fill(slots, slots + padded, slots_);
  std::fill(lengths, lengths + padded, 1);
  for (size_t n = 0; n < rows.size(); ++n) {
    const DecodeRow& row = rows[n];
    slots[n] = row.slot;
    row.how.write(numbers + static_cast<int64_t>(n) * ops::kSampleNumberCount);
    if (width == 0) continue;
    positions[n] = row.position;
    lengths[n] = row.position + 1;
    const auto page = static_cast<size_t>(row.position / page_size_);
    places[n] = row.pages[page] * page_size_ + row.position % page_size_;
    std::copy_n(row.pages.begin(), page + 1, table + static_cast<int64_t>(n) * width);
  }
  ops::pinned_copy(input_.narrow(0, 0, size), host);
}

void DecodeRunner::sample(const at::Tensor& logits, const Inputs& in, const Shape& shape) {
  const int64_t rows = logits.size(0);
  ops::sample_tokens({.logits = logits,
                      .numbers = in.numbers,
                      .slots = in.slots,
                      .counts = shape.adjusted ? counts_ : at::Tensor(),
                      .bias = shape.adjusted ? bias_ : at::Tensor(),
                      .last = last_,
                      .tokens = tokens_.narrow(0, 0, rows)});
  if (!shape.scored) return;
  // logsumexp adds in an order that depends on the number of rows. It is computed in fp64, so that the differences are
  // too small to change the log-probabilities, which are rounded to fp32.
  const at::Tensor lse = at::logsumexp(logits.to(at::kDouble), {1}, /*keepdim=*/true);
  const at::Tensor chosen = tokens_.narrow(0, 0, rows).clamp_min(0).unsqueeze(1);
  logprobs_.narrow(0, 0, rows).copy_((logits.gather(1, chosen) - lse).squeeze(1));
  const auto [values, ids] = at::topk(logits, likely_.size(1), 1);
  likely_.narrow(0, 0, rows).copy_(values - lse);
  likely_ids_.narrow(0, 0, rows).copy_(ids);
}

void DecodeRunner::run(const Shape& shape) {
  const Inputs in = inputs(shape);
  PagedKeys paged = pages_;
  paged.block_table = in.table;
  paged.lengths = in.lengths;
  paged.positions = in.positions.unsqueeze(1);
  paged.slots = in.places;
  paged.longest = shape.width * page_size_;
  const ModelConfig& c = model_.config();
  if (c.positions.kind == PositionKind::learned) paged.longest = std::min(paged.longest, c.max_length);
  const at::Tensor ids = last_.index_select(0, in.slots).unsqueeze(1);
  const at::Tensor hidden = model_.forward(ids, {.paged = &paged}).hidden.squeeze(1);
  sample(model_.logits(hidden), in, shape);
}

std::unique_ptr<DecodeRunner::SampledTokens> DecodeRunner::step(std::span<const DecodeRow> rows) {
  int64_t longest = 1;
  for (const DecodeRow& row : rows) longest = std::max(longest, row.position / page_size_ + 1);
  const Shape shape = shape_of(rows, std::max(power_above(static_cast<int64_t>(rows.size())), least_rows_),
                               std::max(power_above(longest), kMinWidth));
  send(rows, shape);
  recorded_.run(shape, [this, shape] { run(shape); });
  return fetch(rows, shape.scored);
}

std::unique_ptr<DecodeRunner::SampledTokens> DecodeRunner::begin(const at::Tensor& hidden,
                                                                 std::span<const DecodeRow> rows) {
  const auto count = static_cast<int64_t>(rows.size()), padded = std::max(count, least_rows_);
  const Shape shape = shape_of(rows, padded, 0);
  send(rows, shape);
  const at::Tensor all = padded > count ? at::constant_pad_nd(hidden, {0, 0, 0, padded - count}) : hidden;
  sample(model_.logits(all).contiguous(), inputs(shape), shape);
  return fetch(rows, shape.scored);
}

std::unique_ptr<DecodeRunner::SampledTokens> DecodeRunner::fetch(std::span<const DecodeRow> rows, bool scored) {
  auto result = std::make_unique<SampledTokens>();
  const bool pinned = input_.is_cuda();
  const auto count = static_cast<int64_t>(rows.size());
  const auto to_host = [&](const at::Tensor& from) {
    const at::Tensor some = from.narrow(0, 0, count);
    const at::Tensor host = host_tensor(some.sizes(), some.scalar_type(), pinned);
    host.copy_(some, /*non_blocking=*/true);
    return host;
  };
  result->tokens = host_tensor({count}, at::kLong, pinned);
  ops::pinned_copy(result->tokens, tokens_.narrow(0, 0, count));
  if (scored) {
    result->logprobs = to_host(logprobs_);
    result->likely = to_host(likely_);
    result->likely_ids = to_host(likely_ids_);
  }
  for (const DecodeRow& row : rows) result->wanted.push_back(row.logprobs);
  if (pinned) {
    const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
    result->arrived = c10::Event(c10::DeviceType::CUDA);
    result->arrived.record(device.getStream(input_.device()));
    result->waits = true;
  }
  return result;
}

ScoredToken DecodeRunner::SampledTokens::token(size_t n) {
  if (waits) arrived.synchronize();
  waits = false;
  const auto row = static_cast<int64_t>(n);
  ScoredToken out{
      .id = tokens.const_data_ptr<int64_t>()[n], .logprob = std::numeric_limits<float>::quiet_NaN(), .likely = {}};
  if (wanted[n] < 0) return out;
  out.logprob = logprobs.const_data_ptr<float>()[n];
  const int64_t* ids = likely_ids.const_data_ptr<int64_t>() + row * likely_ids.size(1);
  const float* values = likely.const_data_ptr<float>() + row * likely.size(1);
  for (int64_t k = 0; k < std::min<int64_t>(wanted[n], likely.size(1)); ++k) out.likely.emplace_back(ids[k], values[k]);
  return out;
}

void DecodeRunner::begin_adjusted(int64_t slot, const TokenCounts& seen, const SamplingOptions& sampling) {
  const int64_t vocabulary = model_.config().vocab_size;
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (id >= vocabulary)
      fail("generate", "logit bias: token {} is outside the vocabulary of {} tokens", id, vocabulary);
  }
  if (!counts_.defined()) {
    counts_ = at::zeros({slots_ + 1, vocabulary}, last_.options().dtype(at::kInt));
    bias_ = at::zeros({slots_ + 1, vocabulary}, last_.options().dtype(at::kFloat));
  }
  const at::Tensor counts = at::zeros({vocabulary}, at::kInt), bias = at::zeros({vocabulary}, at::kFloat);
  for (const auto& [id, count] : seen)
    counts.mutable_data_ptr<int32_t>()[id] = (count.prompt > 0 ? ops::kInPrompt : 0) + count.text;
  for (const auto& [id, more] : sampling.logit_bias) bias.mutable_data_ptr<float>()[id] += more;
  counts_.select(0, slot).copy_(counts);
  bias_.select(0, slot).copy_(bias);
}

}  // namespace lazy
