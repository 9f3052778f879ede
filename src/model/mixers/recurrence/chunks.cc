#include "model/mixers/recurrence/chunks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/blocks/activation_checkpoint.h"

namespace lazy::recurrence {
namespace {

// Returns the number of tokens that are processed in one operation. On a GPU, the number is large enough to use all
// multiprocessors and small enough for the matrices to fit in memory. On a CPU, it is small enough for the data to fit
// in the caches.
int64_t tokens_at_once(const at::Tensor& x) { return x.is_cpu() ? 256 : 8192; }

// Splits (B, N C, H, D) into chunks: (N, B, H, C, D).
at::Tensor split(const at::Tensor& x, int64_t C, at::ScalarType type) {
  const int64_t B = x.size(0), N = x.size(1) / C;
  return x.to(type).view({B, N, C, x.size(2), x.size(3)}).permute({1, 0, 3, 2, 4}).contiguous();
}

// The document to which each token belongs, and the document of the token that precedes the first token.
struct Documents {
  at::Tensor tokens;  // (N C) for N chunks of C tokens; undefined: all tokens are in one document
  at::Tensor before;  // (1): the document of the preceding token
};

ChunkDecays chunk_decays(const at::Tensor& log_decay, const Documents& documents, int64_t N, int64_t H, int64_t C,
                         const at::TensorOptions& options) {
  // The sums are computed in fp64, because the factors are exponentials of differences of these sums, and fp32 would
  // lose too many digits in the differences.
  at::Tensor a_NBHC = at::zeros({1, 1, 1, C}, options.dtype(at::kDouble));
  if (log_decay.defined() && log_decay.dim() == 1) {
    a_NBHC = log_decay.to(at::kDouble).view({1, 1, -1, 1}).expand({1, 1, -1, C});
  } else if (log_decay.defined()) {
    a_NBHC = split(log_decay.unsqueeze(3), C, at::kDouble).squeeze(4);
  }
  const auto type = c10::typeMetaToScalarType(options.dtype());
  // Clamp the log decays at -1000, whose exponential is already zero in every dtype. Larger magnitudes would only make
  // the sums less precise.
  const at::Tensor sum = a_NBHC.clamp_min(-1000).cumsum(3), last = sum.narrow(3, C - 1, 1);
  at::Tensor visible = at::ones({C, C}, options.dtype(at::kBool)).tril().view({1, 1, 1, C, C});
  at::Tensor reads = sum.to(type).exp(), writes = (last - sum).to(type).exp(), keeps = last.to(type).exp();
  if (documents.tokens.defined()) {
    const at::Tensor own = documents.tokens.view({N, 1, 1, C}), end = own.narrow(3, C - 1, 1);
    const at::Tensor before = at::cat({documents.before.view({1, 1, 1, 1}), end.narrow(0, 0, N - 1)});
    visible = visible & own.unsqueeze(4).eq(own.unsqueeze(3));
    reads = reads * own.eq(before);
    writes = writes * own.eq(end);
    keeps = keeps * end.eq(before);
  }
  keeps = keeps.expand({N, -1, -1, -1});
  const at::Tensor between = (sum.unsqueeze(4) - sum.unsqueeze(3)).to(type);
  const at::Tensor pairs = between.masked_fill(visible.logical_not(), -INFINITY).exp();
  const auto of_heads = [H](const at::Tensor& t) { return t.expand({-1, -1, H, -1, -1}); };
  return {of_heads(pairs), of_heads(reads.unsqueeze(4)), of_heads(writes.unsqueeze(4)), of_heads(keeps.unsqueeze(4))};
}

struct SavedInput {
  enum { q, k, v, state, log_decay, beta };
};

// Computes one or more whole chunks of C tokens. `in` contains the input tensors in the order of SavedInput.
std::vector<at::Tensor> whole_chunks(const std::vector<at::Tensor>& in, const Documents& documents, int64_t C,
                                     double scale, const ChunkForm& form) {
  const at::Tensor& v = in[SavedInput::v];
  const at::ScalarType type = state_type(v);
  const int64_t B = v.size(0), L = v.size(1), H = v.size(2), V = v.size(3);
  const at::Tensor q = split(in[SavedInput::q], C, type);
  Chunks chunks{
      .q = scale == 1 ? q : q * scale,
      .k = split(in[SavedInput::k], C, type),
      .v = split(v, C, type),
      .beta = in[SavedInput::beta].defined() ? split(in[SavedInput::beta].unsqueeze(3), C, type) : at::Tensor(),
      .state = in[SavedInput::state],
      .decays = chunk_decays(in[SavedInput::log_decay], documents, L / C, H, C, v.options().dtype(type))};
  const ChunkOutputs out = form(chunks);
  return {out.out.permute({1, 0, 3, 2, 4}).reshape({B, L, H, V}).to(v.scalar_type()), out.state};
}

// Returns the lengths of the spans that are computed one after another: spans of many whole chunks, then the incomplete
// last chunk.
std::vector<int64_t> pieces(int64_t tokens, int64_t batch, int64_t length, int64_t chunk) {
  const int64_t most = std::max<int64_t>(1, tokens / std::max<int64_t>(1, batch * chunk)) * chunk;
  std::vector<int64_t> out;
  for (int64_t rest = length; rest > 0; rest -= out.back()) {
    out.push_back(rest >= chunk ? std::min(most, rest / chunk * chunk) : rest);
  }
  return out;
}

}  // namespace

Outputs by_chunks(const char* operation, const Inputs& in, int64_t chunk, const ChunkForm& form) {
  check(operation, in);
  if (chunk < 1) fail(operation, "chunk: expected at least 1 token, found {}", chunk);
  const int64_t B = in.v.size(0), L = in.v.size(1), H = in.v.size(2), K = in.q.size(3), V = in.v.size(3);
  const auto options = in.v.options().dtype(state_type(in.v));
  at::Tensor state = in.initial_state.defined() ? in.initial_state : at::zeros({B, H, K, V}, options), documents;
  if (L == 0) return {at::empty_like(in.v), in.cu_seqlens.defined() ? at::Tensor() : state};
  if (in.cu_seqlens.defined()) documents = documents_of(in.cu_seqlens, L, in.v.device());
  const std::vector<int64_t> lengths = pieces(tokens_at_once(in.v), B, L, chunk);
  // Each tensor is split into all spans in one operation, so that the backward pass concatenates the gradients of the
  // spans in one operation too.
  std::vector<std::vector<at::Tensor>> tokens;
  for (const at::Tensor& t : {in.q, in.k, in.v, at::Tensor(), in.log_decay, in.beta}) {
    const bool whole = !t.defined() || t.dim() == 1;
    tokens.push_back(whole ? std::vector<at::Tensor>(lengths.size(), t) : t.split_with_sizes(lengths, 1));
  }
  std::vector<at::Tensor> out;
  for (int64_t i = 0, begin = 0; i < static_cast<int64_t>(lengths.size()); begin += lengths[static_cast<size_t>(i++)]) {
    const int64_t length = lengths[static_cast<size_t>(i)];
    std::vector<at::Tensor> piece;
    for (const auto& t : tokens) piece.push_back(t[static_cast<size_t>(i)]);
    piece[SavedInput::state] = state;
    Documents of_piece;
    if (documents.defined())
      of_piece = {documents.narrow(0, begin, length), documents.narrow(0, std::max<int64_t>(0, begin - 1), 1)};
    const auto run = [of_piece, C = std::min(chunk, length), scale = in.scale, form](const std::vector<at::Tensor>& x) {
      return whole_chunks(x, of_piece, C, scale, form);
    };
    const std::vector<at::Tensor> results = checkpoint_activations(piece, run);
    out.push_back(results[0]);
    state = results[1];
  }
  return {out.size() == 1 ? out[0] : at::cat(out, 1), in.cu_seqlens.defined() ? at::Tensor() : state};
}

}  // namespace lazy::recurrence
