// The neural memory of Titans. B: batch, H: heads, T: tokens of a span, D: dim.
#include "model/mixers/titans/neural_memory.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/mixers/chunked_scan.h"
#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/fast_weights/inner_loss.h"
#include "model/mixers/fast_weights/internal.h"
#include "model/mixers/titans/gate_products.h"
#include "model/mixers/titans/memory_tokens.h"
#include "ops/fast_weights.h"

namespace lazy {

namespace {

using torch::autograd::AutogradContext;

// Returns M(x), given the output z of the MLP at x: x + LayerNorm(z) * norm with a norm, otherwise z. All tensors are
// (B, H, T, D).
at::Tensor memory_output(const at::Tensor& z, const at::Tensor& x, const at::Tensor& norm) {
  return norm.defined() ? x + fast_weights::InnerNorm{norm.unsqueeze(1)}.scaled(z) : z;
}

// Returns the step size for fast weights. With a norm, fast weights minimize half of the squared error, so the step is
// doubled.
at::Tensor loss_scaled_step(const at::Tensor& step, const at::Tensor& norm) { return norm.defined() ? 2 * step : step; }

struct MemorySteps {
  at::Tensor u, g;
};

// Returns, for every layer, the inputs u and the gradients g of the loss of M(k) with respect to the outputs of the
// layer, each (B, H, T, ...).
std::vector<MemorySteps> memory_steps(const MemoryWeights& weights, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& norm) {
  std::vector<MemorySteps> steps = {{.u = k}};
  std::vector<at::Tensor> z;
  for (size_t n = 0; n < weights.size(); ++n) {
    z.push_back(at::matmul(steps[n].u, weights[n]));
    if (n + 1 < weights.size()) steps.push_back({.u = at::gelu(z[n])});
  }
  steps.back().g = norm.defined() ? fast_weights::InnerNorm{norm.unsqueeze(1)}.gradient(z.back(), k - v)
                                  : fast_weights::error_gradient(z.back() - v);
  for (size_t n = weights.size() - 1; n > 0; --n) {
    steps[n - 1].g = at::gelu_backward(at::matmul(steps[n].g, weights[n].transpose(-1, -2)), z[n - 1]);
  }
  return steps;
}

// Number of tokens per kernel launch. A larger number is more efficient, because each launch reads and writes a state
// (or its gradient) of 256 KiB per sequence and head.
constexpr int64_t kTokensPerLaunch = 512;

// True if the fast-weights kernels support whole chunks of this shape.
bool kernels_serve(const MemoryInputs& in, const MemoryState& state, int64_t chunk) {
  if (!in.rounded || chunk != ops::kMemoryTokens || state.weights.size() > 2) return false;
  const int64_t hidden = state.weights.size() == 2 ? state.weights[0].size(-1) : 0;
  return ops::fast_weights_kernels(in.q.device().type(), chunk, hidden, /*momentum=*/true) != nullptr;
}

// Appends the incomplete last chunk of a text to the preceding span. The caller must use kernels and must not need the
// state after the text. The missing tokens of the chunk get a step size of zero and no weight decay.
void join_beginning(std::vector<ChunkSpan>& pieces) {
  if (pieces.size() < 2 || pieces.back().offset > 0 || pieces.back().ends_chunk) return;
  ChunkSpan& before = pieces[pieces.size() - 2];
  if (before.offset > 0 || !before.ends_chunk) return;
  before.length += pieces.back().length;
  ++before.chunks, before.ends_chunk = false;
  pieces.pop_back();
}

at::ScalarType output_type(const at::Tensor& q, const at::Tensor& computed, bool raw) {
  return (raw ? q : computed).scalar_type();
}

// Returns the same result as memory_piece, for spans that consist of whole chunks or end with an incomplete chunk.
at::Tensor memory_from_start(const ChunkSpan& piece, const TensorList& tokens, const at::Tensor& norm,
                             TensorList& state, bool rounded, bool raw) {
  const int64_t B = tokens[0].size(0), H = tokens[0].size(1);
  const int64_t T = piece.chunks > 1 && !piece.ends_chunk ? ops::kMemoryTokens : piece.length / piece.chunks;
  const auto by_chunk = [&](const at::Tensor& x) {
    return fast_weights::to_chunks(pad_tokens(x, piece.chunks * T), piece.chunks);
  };
  const auto joined_axes = [](const MemoryWeights& weights) {
    MemoryWeights out;
    for (const at::Tensor& w : weights) out.push_back(w.flatten(0, 1));
    return out;
  };
  MemoryState s = memory_state(state, 0);
  const GateProducts c =
      gate_products(by_chunk(loss_scaled_step(tokens[3], norm)), by_chunk(tokens[4]), by_chunk(tokens[5]), rounded);
  const MemoryTokensInChunks in =
      memory_tokens(tokens[0], tokens[1], tokens[2], piece.chunks, T, raw, /*residual=*/norm.defined(), rounded);
  at::Tensor norm_weight, norm_bias;
  if (norm.defined()) {
    norm_weight = fast_weights::for_all(norm.unsqueeze(1), B);
    norm_bias = at::zeros(norm_weight.sizes(), norm.options().requires_grad(false));
  }
  const auto result = run_fast_weights({.q = in.q,
                                        .k = in.k,
                                        .target = in.target,
                                        .norm_weight = norm_weight,
                                        .norm_bias = norm_bias,
                                        .read_steps = c.read_steps,
                                        .read_keep = c.read_keep,
                                        .read_carry = c.read_carry,
                                        .steps = c.steps,
                                        .momentum_steps = c.momentum_steps,
                                        .keep = c.keep,
                                        .carry = c.carry,
                                        .momentum_keep = c.momentum_keep,
                                        .W = joined_axes(s.weights),
                                        .S = joined_axes(s.momentum),
                                        .rounded = rounded,
                                        .last_state = piece.needs_state});
  for (size_t n = 0; n < result.W.size(); ++n) {
    s.weights[n] = result.W[n].unflatten(0, {B, H}), s.momentum[n] = result.S[n].unflatten(0, {B, H});
  }
  if (piece.ends_chunk) s.base = s.weights;
  if (piece.needs_state) state = tensors(s);
  return memory_outputs(result.out, in.q, norm, B, piece.length, output_type(tokens[0], result.out, raw), rounded);
}

// Repeats the state of one sequence for each sequence of a batch.
MemoryState for_batch(const MemoryState& state, int64_t batch) {
  TensorList all;
  for (const at::Tensor& t : tensors(state)) all.push_back(t.expand({batch, -1, -1, -1}));
  return memory_state(all, state.chunk_position);
}

// The batched matrix product a b. TF32 is allowed for its fp32 products in the forward and in the backward pass.
struct RoundedProduct : torch::autograd::Function<RoundedProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const fast_weights::RoundedProducts rounded(true);
    context->save_for_backward({a, b});
    return at::matmul(a, b);
  }
  static TensorList backward(AutogradContext* context, const TensorList& gradients) {
    const fast_weights::RoundedProducts rounded(true);
    const TensorList saved = context->get_saved_variables();
    const auto transposed = [](const at::Tensor& x) { return x.transpose(-1, -2); };
    return {at::matmul(gradients[0], transposed(saved[1])), at::matmul(transposed(saved[0]), gradients[0])};
  }
};

}  // namespace

at::Tensor recall(const MemoryWeights& weights, const at::Tensor& norm, const at::Tensor& x, at::ScalarType type) {
  const bool rounded = at::elementSize(type) == 2;
  const at::Tensor queries = x.transpose(1, 2).contiguous();  // (B, H, T, D)
  const auto product = [&](const at::Tensor& a, const at::Tensor& b) {
    return rounded ? RoundedProduct::apply(a, b) : at::matmul(a, b);
  };
  at::Tensor z = queries;
  for (size_t n = 0; n < weights.size(); ++n) z = product(n == 0 ? z : at::gelu(z), weights[n]);
  const auto as_chunk = [](const at::Tensor& t) { return t.flatten(0, 1).unsqueeze(0); };
  return memory_outputs(as_chunk(z), as_chunk(queries), norm, x.size(0), x.size(1), type, rounded).transpose(1, 2);
}

at::Tensor memory_piece(const ChunkSpan& piece, const TensorList& given, const at::Tensor& norm, TensorList& state,
                        bool rounded, bool raw) {
  if (piece.offset == 0) return memory_from_start(piece, given, norm, state, rounded, raw);
  TensorList tokens = given;
  if (raw) tokens[0] = unit_length(given[0]), tokens[1] = unit_length(given[1]), tokens[2] = given[2].to(at::kFloat);
  MemoryState s = memory_state(state, piece.offset);
  const auto steps = memory_steps(s.base, tokens[1], tokens[2], norm);
  const GateProducts c = gate_products(loss_scaled_step(tokens[3], norm), tokens[4], tokens[5], rounded);
  const ChunkwiseUpdate read{c.read_keep, c.read_carry, c.read_steps};
  at::Tensor x = tokens[0];
  for (size_t n = 0; n < steps.size(); ++n) {
    const auto& [u, g] = steps[n];
    x = chunkwise_read(read, n == 0 ? x : at::gelu(x), s.weights[n], s.momentum[n], u, g);
    if (!piece.needs_state) continue;
    const at::Tensor u_T = u.transpose(-1, -2);
    s.weights[n] = c.keep * s.weights[n] + c.carry * s.momentum[n] - at::matmul(u_T, c.steps * g);
    s.momentum[n] = c.momentum_keep * s.momentum[n] - at::matmul(u_T, c.momentum_steps * g);
  }
  if (piece.ends_chunk) s.base = s.weights;
  if (piece.needs_state) state = tensors(s);
  return memory_output(x, tokens[0], norm).to(output_type(given[0], x, raw));
}

TensorList tensors(const MemoryState& s) {
  TensorList out = s.weights;
  for (const auto* list : {&s.momentum, &s.base}) out.insert(out.end(), list->begin(), list->end());
  return out;
}

MemoryState memory_state(const TensorList& all, int64_t seen) {
  const auto third = [&](std::ptrdiff_t n) {
    const auto layers = static_cast<std::ptrdiff_t>(all.size() / 3);
    return TensorList(all.begin() + n * layers, all.begin() + (n + 1) * layers);
  };
  return {third(0), third(1), third(2), seen};
}

MemoryState initial_memory_state(const MemoryWeights& weights, int64_t batch) {
  MemoryState state;
  for (const at::Tensor& w : weights) {
    state.weights.push_back(w.unsqueeze(0).expand({batch, -1, -1, -1}));
    state.momentum.push_back(at::zeros(state.weights.back().sizes(), w.options().requires_grad(false)));
  }
  state.base = state.weights;
  return state;
}

at::Tensor memory_packed(const MemoryInputs& in, const MemoryState& state, int64_t chunk,
                         const DocumentBatches& documents) {
  TensorList out;
  for (const DocumentBatch& batch : documents.batches) {
    MemoryInputs part = in;
    part.last_state = false;
    for (at::Tensor* x : {&part.q, &part.k, &part.v, &part.step, &part.log_momentum, &part.log_keep}) {
      *x = batch_document_tokens(*x, batch);  // unbatch_documents() discards the outputs of padding tokens
    }
    out.push_back(std::get<0>(memory_chunks(part, for_batch(state, batch.tokens.size(0)), chunk)));
  }
  return unbatch_documents(out, documents);
}

std::tuple<at::Tensor, MemoryState> memory_chunks(const MemoryInputs& in, MemoryState state, int64_t chunk,
                                                  const at::Tensor& cu_seqlens) {
  if (cu_seqlens.defined())
    return {memory_packed(in, state, chunk, document_batches(cu_seqlens, chunk, in.q.device())), state};
  const bool by_kernels = kernels_serve(in, state, chunk);
  const int64_t tokens_per_checkpoint = by_kernels ? kTokensPerLaunch : kTokensPerCheckpoint;
  auto pieces =
      merge_whole_chunks(split_into_chunks(in.q.size(1), chunk, state.chunk_position, {}), tokens_per_checkpoint);
  if (!in.last_state && by_kernels) join_beginning(pieces);
  const TensorList shared = in.norm.defined() ? TensorList{in.norm} : TensorList{};
  const auto [outs, last] = scan_chunks(
      pieces, {in.q, in.k, in.v, in.step, in.log_momentum, in.log_keep}, shared, tensors(state), in.last_state,
      [rounded = in.rounded, raw = in.raw](const ChunkSpan& piece, const TensorList& tokens, const TensorList& constant,
                                           TensorList& now) {
        return TensorList{
            memory_piece(piece, tokens, constant.empty() ? at::Tensor() : constant[0], now, rounded, raw)};
      },
      tokens_per_checkpoint);
  if (!in.last_state) return {outs[0], state};
  return {outs[0], memory_state(last, pieces.back().ends_chunk ? 0 : pieces.back().offset + pieces.back().length)};
}

}  // namespace lazy
