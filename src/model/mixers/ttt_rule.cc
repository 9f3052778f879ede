// The test-time training recurrence. B: batch, H: heads, T: tokens of a span, D: dim.
#include "model/mixers/ttt_rule.h"

#include <ATen/ATen.h>

#include "model/mixers/chunked_scan.h"
#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/fast_weights/inner_loss.h"
#include "model/mixers/ttt_kernels.h"

namespace lazy {

namespace {

// Computes the output f = LayerNorm(z) * weight + bias of the inner model, and the gradient of 1/2 |f - target|^2 with
// respect to z. Both results are differentiable, so that the weights of the outer model can be trained.
struct InnerNorm {
  at::Tensor weight, bias;  // (H, 1, D)

  at::Tensor forward(const at::Tensor& z) const { return fast_weights::InnerNorm{weight}.scaled(z) + bias; }
  at::Tensor loss_gradient(const at::Tensor& z, const at::Tensor& target) const {
    return fast_weights::InnerNorm{weight}.gradient(z, bias - target);
  }
};

// The inputs of a layer and the loss gradients with respect to its outputs, for every token.
struct TttSteps {
  at::Tensor u, g;
};

std::vector<TttSteps> ttt_steps(const TttWeights& w, const at::Tensor& k, const at::Tensor& target,
                                const InnerNorm& norm) {
  const at::Tensor z = at::matmul(k, w.W[0]) + w.b[0];
  if (w.W.size() == 1) return {{k, norm.loss_gradient(z, target)}};
  const at::Tensor hidden = at::gelu(z, "tanh");
  const at::Tensor g = norm.loss_gradient(at::matmul(hidden, w.W[1]) + w.b[1], target);
  return {{k, at::gelu_backward(at::matmul(g, w.W[1].transpose(-1, -2)), z, "tanh")}, {hidden, g}};
}

// Returns the same result as ttt_piece. The span must consist of whole mini-batches.
at::Tensor ttt_mini_batches(const ChunkSpan& piece, const TensorList& tokens, const TensorList& shared,
                            TensorList& state, bool rounded) {
  const int64_t B = tokens[0].size(0), H = tokens[0].size(1);
  const auto by_chunk = [&](const at::Tensor& x) { return fast_weights::to_chunks(x, piece.chunks); };
  TttState s = ttt_state(state, 0);
  const auto start = [](const TensorList& weights) {
    TensorList out;
    for (const at::Tensor& w : weights) out.push_back(w.flatten(0, 1));
    return out;
  };
  const at::Tensor &scale = shared[0], rate = by_chunk(tokens[3]), k = by_chunk(tokens[1]);
  const auto result = run_fast_weights({.q = by_chunk(tokens[0]),
                                        .k = k,
                                        .target = by_chunk(tokens[2]) - k,
                                        .norm_weight = fast_weights::for_all(shared[1].unsqueeze(1), B),
                                        .norm_bias = fast_weights::for_all(shared[2].unsqueeze(1), B),
                                        .read_steps = (scale.unsqueeze(1) * rate.unsqueeze(-2)).tril(),
                                        .steps = (scale[-1] * rate).unsqueeze(-1),
                                        .W = start(s.start.W),
                                        .b = start(s.start.b),
                                        .tanh = true,
                                        .rounded = rounded,
                                        .last_state = piece.needs_state});
  for (size_t n = 0; n < result.W.size(); ++n) {
    s.start.W[n] = result.W[n].unflatten(0, {B, H}), s.start.b[n] = result.b[n].unflatten(0, {B, H});
  }
  if (piece.needs_state) state = tensors(s);
  const InnerNorm norm{shared[1].unsqueeze(1), shared[2].unsqueeze(1)};
  return tokens[0] + norm.forward(fast_weights::from_chunks(result.out, B));
}

// Returns the outputs of one span and updates `state`. `tokens` contains q, k and v (B, H, T, D) and rate (B, H, T);
// `shared` contains position_scale, norm_weight and norm_bias.
at::Tensor ttt_piece(const ChunkSpan& piece, const TensorList& tokens, const TensorList& shared, TensorList& state) {
  const at::Tensor &q = tokens[0], &k = tokens[1], &v = tokens[2], &rate = tokens[3];
  TttState s = ttt_state(state, piece.offset);
  const InnerNorm norm{shared[1].unsqueeze(1), shared[2].unsqueeze(1)};
  const auto steps = ttt_steps(s.start, k, v - k, norm);
  const at::Tensor scale = shared[0].narrow(0, piece.offset, piece.length).unsqueeze(1);  // (T, 1)
  const ChunkwiseUpdate form{.carry = s.chunk_position > 0 ? -scale : at::Tensor(),
                             .steps = (scale * rate.unsqueeze(-2)).tril()};
  at::Tensor x = q;
  for (size_t n = 0; n < steps.size(); ++n) {
    if (n > 0) x = at::gelu(x, "tanh");
    x = chunkwise_read(form, x, s.start.W[n], s.sums.W[n], steps[n].u, steps[n].g, {s.start.b[n], s.sums.b[n]});
  }
  for (size_t n = 0; n < steps.size() && piece.needs_state; ++n) {
    const at::Tensor weighted = rate.unsqueeze(-1) * steps[n].g;
    at::Tensor sum_W = at::matmul(steps[n].u.transpose(-1, -2), weighted), sum_b = weighted.sum(-2, /*keepdim=*/true);
    if (s.chunk_position > 0) sum_W = s.sums.W[n] + sum_W, sum_b = s.sums.b[n] + sum_b;
    if (piece.ends_chunk) {
      s.start.W[n] = s.start.W[n] - scale[-1] * sum_W;
      s.start.b[n] = s.start.b[n] - scale[-1] * sum_b;
    } else {
      s.sums.W[n] = sum_W, s.sums.b[n] = sum_b;
    }
  }
  if (piece.needs_state) state = tensors(s);
  return q + norm.forward(x);
}

// Repeats the state of one sequence for each sequence of a batch.
TttState for_batch(const TttState& state, int64_t batch) {
  TensorList all;
  for (const at::Tensor& t : tensors(state)) all.push_back(t.expand({batch, -1, -1, -1}));
  return ttt_state(all, state.chunk_position);
}

void clear_sums(TttState& state) {
  for (auto* list : {&state.sums.W, &state.sums.b}) {
    for (at::Tensor& sum : *list) sum = at::zeros(sum.sizes(), sum.options());
  }
}

// Computes ttt_chunks with batched matrix products, without the fused kernels.
std::tuple<at::Tensor, TttState> ttt_products(const TttInputs& in, TttState state) {
  const auto exact = [&](const at::Tensor& x) { return x.to(in.rate.scalar_type()); };
  const auto pieces = merge_whole_chunks(
      split_into_chunks(in.q.size(1), in.position_scale.size(0), state.chunk_position, {}), kTokensPerCheckpoint);
  const auto [outs, last] = scan_chunks(
      pieces, {exact(in.q), exact(in.k), exact(in.v), in.rate}, {in.position_scale, in.norm_weight, in.norm_bias},
      tensors(state), in.last_state,
      [rounded = in.rounded](const ChunkSpan& piece, const TensorList& tokens, const TensorList& shared,
                             TensorList& now) {
        return TensorList{piece.offset == 0 && piece.ends_chunk ? ttt_mini_batches(piece, tokens, shared, now, rounded)
                                                                : ttt_piece(piece, tokens, shared, now)};
      });
  if (!in.last_state) return {outs[0], state};
  state = ttt_state(last, pieces.back().ends_chunk ? 0 : pieces.back().offset + pieces.back().length);
  if (state.chunk_position == 0) clear_sums(state);  // each mini-batch starts with zero sums
  return {outs[0], state};
}

// Computes whole mini-batches with kernels, and the tokens before and after them with batched matrix products.
std::tuple<at::Tensor, TttState> ttt_by_kernels(const ops::FastWeightsKernels& kernels, const TttInputs& in,
                                                TttState state) {
  const int64_t length = in.q.size(1), chunk = in.position_scale.size(0);
  const int64_t first = std::min(length, (chunk - state.chunk_position) % chunk);
  const int64_t whole = (length - first) / chunk * chunk;
  TensorList out;
  for (int64_t begin = 0; begin < length;) {
    const bool by_kernels = begin == first && whole > 0;
    const int64_t end = begin < first ? first : by_kernels ? first + whole : length;
    TttInputs part = in;
    for (at::Tensor* x : {&part.q, &part.k, &part.v, &part.rate}) *x = x->narrow(1, begin, end - begin);
    part.last_state = in.last_state || end < length;
    if (by_kernels) {
      auto [y, after] = run_ttt_kernels(kernels, part, state.start);
      out.push_back(y);
      if (part.last_state) state.start = after, clear_sums(state);
    } else {
      auto [y, after] = ttt_products(part, state);
      out.push_back(y), state = after;
    }
    begin = end;
  }
  return {out.size() == 1 ? out[0] : at::cat(out, 1), state};
}

}  // namespace

TensorList tensors(const TttState& s) {
  TensorList out;
  for (const auto* list : {&s.start.W, &s.start.b, &s.sums.W, &s.sums.b})
    out.insert(out.end(), list->begin(), list->end());
  return out;
}

TttState ttt_state(const TensorList& all, int64_t seen) {
  const auto quarter = [&](std::ptrdiff_t n) {
    const auto layers = static_cast<std::ptrdiff_t>(all.size() / 4);
    return TensorList(all.begin() + n * layers, all.begin() + (n + 1) * layers);
  };
  return {{quarter(0), quarter(1)}, {quarter(2), quarter(3)}, seen};
}

TttState initial_ttt_state(const TttWeights& weights, int64_t batch) {
  TttState state;
  const auto fill = [&](const std::vector<at::Tensor>& from, std::vector<at::Tensor>& start,
                        std::vector<at::Tensor>& sums) {
    for (const at::Tensor& w : from) {
      start.push_back(w.unsqueeze(0).expand({batch, -1, -1, -1}));
      sums.push_back(at::zeros(start.back().sizes(), w.options().requires_grad(false)));
    }
  };
  fill(weights.W, state.start.W, state.sums.W);
  fill(weights.b, state.start.b, state.sums.b);
  return state;
}

at::Tensor ttt_packed(const TttInputs& in, const TttState& state, const DocumentBatches& documents) {
  TensorList out;
  for (const DocumentBatch& batch : documents.batches) {
    TttInputs part = in;
    part.last_state = false;
    for (at::Tensor* x : {&part.q, &part.k, &part.v, &part.rate}) *x = batch_document_tokens(*x, batch);
    // Padding tokens get a learning rate of zero, so that they do not update the weights.
    part.rate = part.rate * batch.real.unsqueeze(-1);
    out.push_back(std::get<0>(ttt_chunks(part, for_batch(state, batch.tokens.size(0)))));
  }
  return unbatch_documents(out, documents);
}

std::tuple<at::Tensor, TttState> ttt_chunks(const TttInputs& in, TttState state, const at::Tensor& cu_seqlens) {
  if (cu_seqlens.defined()) {
    return {ttt_packed(in, state, document_batches(cu_seqlens, in.position_scale.size(0), in.q.device())), state};
  }
  const ops::FastWeightsKernels* const kernels = ttt_kernels(in, state.start);
  return kernels ? ttt_by_kernels(*kernels, in, state) : ttt_products(in, state);
}

}  // namespace lazy
