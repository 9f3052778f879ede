// Memory as context (Titans MAC). B: batch, T: tokens of a span, d: hidden_size.
#include "model/mixers/titans/memory_as_context.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/chunked_scan.h"
#include "model/mixers/mixer.h"
#include "model/mixers/packed_layouts.h"
#include "model/mixers/recurrence/short_convolution.h"
#include "model/mixers/titans/attention.h"
#include "model/mixers/titans/memory_branch.h"
#include "model/mixers/titans/memory_tokens.h"
#include "ops/attention.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace lazy {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The arguments of one span that are not tensors.
struct MacSegment {
  int64_t heads, head_dim, memory_heads, chunk, persistent;
  double norm_eps;
  Rope rope;
  bool deterministic;

  at::Tensor rotate(const at::Tensor& heads_of, const at::Tensor& positions) const {
    return rope.base > 0 && heads_of.size(1) > 0
               ? ops::rope(heads_of, rope.base, 0, {.scaling = rope.scaling, .positions = positions})
               : heads_of;
  }
  at::Tensor by_head(const at::Tensor& x) const { return x.view({x.size(0), x.size(1), heads, head_dim}); }
};

// MacShared contains the indices of the tensors that all spans share, and MacState the indices of the state tensors.
// The state of the neural memory (memory_state) begins at index kMemory.
enum MacShared {
  kKeyValueWeight,
  kPrefixKeys,  // keys of the persistent tokens, which are the same in all sequences
  kPrefixValues,
  kPlaces,        // RoPE positions of a segment's tokens, which follow the persistent tokens
  kMemoryWeight,  // weights of the projections to q, k, v and the gates
  kGateBias,
  kRecalledNorm,
  kConvolution,
  kModelNorm  // only present if the memory has a norm
};
enum MacState { kPastKeys, kPastValues, kPastInputs, kMemory };

at::Tensor model_norm(const TensorList& shared) {
  return shared.size() > kModelNorm ? shared[kModelNorm] : at::Tensor();
}

// Concatenates `before` (B, P, heads, dim) and the sequence a_1 b_1 a_2 b_2 ..., where a contains the retrieved tensors
// and b the tensors of the tokens themselves, each (B, T, heads, dim). The result is (B, P + 2 T, heads, dim). With
// this order, a causal mask lets a token attend to the tensors that were retrieved for it and for earlier tokens, but
// not to tensors that were retrieved for later tokens. An undefined `a` is replaced by zeros.
struct Interleaved : torch::autograd::Function<Interleaved> {
  // Splits `all` into its components: before, a, b.
  static TensorList parts(const at::Tensor& all, int64_t before) {
    const int64_t pairs = (all.size(1) - before) / 2;
    const at::Tensor both = all.narrow(1, before, 2 * pairs).unflatten(1, {pairs, 2});
    return {all.narrow(1, 0, before), both.select(2, 0), both.select(2, 1)};
  }
  static at::Tensor forward(AutogradContext* context, const at::Tensor& before, const at::Tensor& a,
                            const at::Tensor& b) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["before"] = before.size(1);
    const at::Tensor all = at::empty({b.size(0), before.size(1) + 2 * b.size(1), b.size(2), b.size(3)}, b.options());
    const TensorList to = parts(all, before.size(1));
    to[0].copy_(before), to[1].copy_(a), to[2].copy_(b);
    return all;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return parts(gradients[0], context->saved_data["before"].toInt());
  }
};

// Computes the attention of the span's tokens over the persistent tokens and over the tokens of the segment so far.
// Returns y (B, T, d) and appends to the cached keys and values.
at::Tensor mac_attend(const MacSegment& segment, const ChunkSpan& piece, const TensorList& tokens,
                      const TensorList& shared, TensorList& state) {
  const at::Tensor q_x = tokens[1].transpose(1, 2), k_x = tokens[2].transpose(1, 2), v_x = tokens[3].transpose(1, 2);
  const int64_t B = q_x.size(0), T = q_x.size(1);
  const MemoryWeights base = memory_state({state.begin() + kMemory, state.end()}, 0).base;
  const at::Tensor recalled =
      recall(base, model_norm(shared), tokens[0].transpose(1, 2), q_x.scalar_type()).reshape({B, T, -1});
  const at::Tensor h = ops::rms_norm(recalled, shared[kRecalledNorm], segment.norm_eps).to(q_x.scalar_type());
  const at::Tensor places = shared[kPlaces].narrow(0, piece.offset, T);
  const TensorList of_retrieved = at::linear(h, shared[kKeyValueWeight]).chunk(2, -1);
  const at::Tensor k_h = segment.rotate(segment.by_head(of_retrieved[0]), places),
                   v_h = segment.by_head(of_retrieved[1]);
  // Concatenates the keys (or values) of the persistent tokens, of the earlier tokens of the segment and of the new
  // tokens. Keys and values of the segment are cached unless the new tokens end the segment.
  const auto joined = [&](MacShared prefix, MacState past, const at::Tensor& of_h, const at::Tensor& of_x) {
    const at::Tensor &first = shared[prefix], &seen = state[past];
    const at::Tensor all = Interleaved::apply(seen.size(1) > 0 ? at::cat({first, seen}, 1) : first, of_h, of_x);
    const int64_t kept = piece.ends_chunk ? 0 : all.size(1) - first.size(1);
    state[past] = all.narrow(1, first.size(1), kept).clone();
    return all;
  };
  const at::Tensor k = joined(kPrefixKeys, kPastKeys, k_h, k_x), v = joined(kPrefixValues, kPastValues, v_h, v_x);
  // The outputs at the positions of retrieved tokens are not used, so their queries are zero.
  const auto out = ops::attention(Interleaved::apply(q_x.detach().narrow(1, 0, 0), at::zeros({}, q_x.options()), q_x),
                                  k, v, {}, {}, {.normalizer = "softmax", .deterministic = segment.deterministic});
  return std::get<0>(out).view({B, T, 2, -1}).select(2, 1);
}

// Updates the memory with y (B, T, d) and returns the memory's output, (B, T, d).
at::Tensor mac_learn(const MacSegment& segment, const ChunkSpan& piece, const at::Tensor& y, const TensorList& shared,
                     TensorList& state) {
  const int64_t B = y.size(0), T = y.size(1);
  const int64_t width = y.size(2);
  const TensorList projected =
      at::linear(y, shared[kMemoryWeight]).split_with_sizes({3 * width, shared[kGateBias].size(0)}, -1);
  at::Tensor streams = projected[0];  // the projections of q, k and v, concatenated
  if (shared[kConvolution].numel() > 0) {
    const int64_t past = state[kPastInputs].size(1);
    const at::Tensor inputs = at::cat({state[kPastInputs], streams}, 1);
    streams = recurrence::short_convolution({.x = inputs, .weight = shared[kConvolution]}).out.narrow(1, past, T);
    const at::Tensor latest = inputs.narrow(1, T, past);
    // `latest` is a view that keeps `inputs` in memory, so it is copied. With autograd, the graph keeps `inputs` in
    // memory in any case, and a copy would not save memory.
    state[kPastInputs] = at::GradMode::is_enabled() ? latest : latest.clone();
  } else {
    streams = at::silu(streams);
  }
  TensorList qkv = streams.chunk(3, -1);
  for (at::Tensor& x : qkv) x = x.view({B, T, segment.memory_heads, -1}).transpose(1, 2);
  const auto gates = memory_gates(projected[1], shared[kGateBias], qkv[0].size(-1), segment.chunk);
  const auto by_head = [](const at::Tensor& gate) { return gate.transpose(1, 2); };
  TensorList memory(state.begin() + kMemory, state.end());
  const at::Tensor answers = memory_piece(
      piece, {qkv[0], qkv[1], qkv[2], by_head(gates.step), by_head(gates.log_momentum), by_head(gates.log_keep)},
      model_norm(shared), memory, /*rounded=*/y.scalar_type() != at::kFloat,
      /*raw=*/true);
  if (piece.needs_state) std::copy(memory.begin(), memory.end(), state.begin() + kMemory);
  return answers.transpose(1, 2).reshape({B, T, -1});
}

class TitansMac final : public TitansMixer {
 public:
  TitansMac(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  Linear attention_;  // the projections q_proj, k_proj and v_proj
  BranchProduct product_;
};

TitansMac::TitansMac(const ModelConfig& c, int64_t, at::Device device)
    : TitansMixer(c, device),
      attention_(c.hidden_size, {c.hidden_size, c.hidden_size, c.hidden_size}, device),
      product_(c, device) {
  NamedTensors made = qkv_parameters(attention_);
  for (auto& item : product_.own_parameters()) made.push_back(item);
  register_parameters(made, device);
  product_.bind_parameters(table_);
  table_.fill("memory.recalled_norm.weight", 1);
}

std::vector<const Linear*> TitansMac::products() const {
  return {&product_.output()};  // mac_attend() and mac_learn() read all other weights directly
}

// The cached state of the layer consists of the latest inputs of the short convolution of the retrieval queries,
// followed by the tensors of MacState.
at::Tensor TitansMac::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  if (options.packed) {  // documents are processed in batches, in parallel
    const DocumentBatches& documents = batches_of(*options.packed, config_.mixer.segment, x.value.device());
    TensorList out;
    for (const DocumentBatch& batch : documents.batches) {
      out.push_back(
          forward({batch_document_tokens(x.value, batch)}, layer, {.deterministic = options.deterministic}, nullptr));
    }
    return unbatch_documents(out, documents);
  }
  const int64_t B = x.value.size(0), L = x.value.size(1), taps = config_.mixer.conv_size;
  const int64_t earlier = options.cache ? options.cache->length : 0, size = config_.mixer.segment;
  const at::ScalarType type = x.value.scalar_type();
  const auto whole = x.value.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor positions = at::arange(earlier, earlier + L, whole);
  const MacSegment segment{config_.attention.num_heads,
                           config_.attention.head_dim,
                           config_.mixer.heads,
                           config_.mixer.chunk,
                           config_.mixer.persistent,
                           config_.norm.eps,
                           rope_at(config_, config_.max_length),
                           options.deterministic};
  TensorList before;
  if (earlier > 0) before = layer_state(*options.cache, layer);

  // Compute all terms that do not depend on the memory for all tokens at once, before the spans are processed.
  const at::Tensor projections = memory_.projections(type), convolutions = memory_.convolutions();
  recurrence::Convolution asked{.out = at::linear(x.value, projections.narrow(0, 0, config_.hidden_size)),
                                .state = at::empty({0})};
  if (taps > 0) {
    asked = recurrence::short_convolution({.x = asked.out,
                                           .weight = convolutions.narrow(0, 0, config_.hidden_size),
                                           .state = before.empty() ? at::Tensor() : before[0]});
  } else {
    asked.out = at::silu(asked.out);
  }
  const at::Tensor questions = unit_length(asked.out.reshape({B, L, segment.memory_heads, -1}));
  const auto parts = attention_.forward(x);
  const at::Tensor places = positions.remainder(size) + segment.persistent;
  const at::Tensor q = segment.rotate(segment.by_head(parts[0]), places),
                   k = segment.rotate(segment.by_head(parts[1]), places);
  const auto prefix = attention_.forward(persistent_tokens(table_, config_).to(type).unsqueeze(0));
  const at::Tensor prefix_keys = segment.rotate(segment.by_head(prefix[1]), at::arange(segment.persistent, whole));
  const auto of_every_text = [B](const at::Tensor& x) { return x.expand({B, -1, -1, -1}); };

  TensorList shared = {joined_weight(attention_, type).narrow(0, config_.hidden_size, 2 * config_.hidden_size),
                       of_every_text(prefix_keys),
                       of_every_text(segment.by_head(prefix[2])),
                       at::arange(segment.persistent, segment.persistent + size, whole),
                       at::cat({projections, memory_.gate_weight(type)}),
                       memory_.gate_bias(),
                       table_["memory.recalled_norm.weight"],
                       convolutions};
  if (memory_.model_norm().defined()) shared.push_back(memory_.model_norm());
  TensorList state(before.begin() + (before.empty() ? 0 : 1), before.end());
  if (before.empty()) {
    const at::Tensor none = at::empty({B, 0, segment.heads, segment.head_dim}, x.value.options().requires_grad(false));
    state = {none, none, at::zeros({B, std::max<int64_t>(taps - 1, 0), 3 * config_.hidden_size}, none.options())};
    for (const at::Tensor& t : tensors(initial_memory_state(memory_.weights(), B))) state.push_back(t);
  }
  const auto [outs, after] = scan_chunks(
      split_into_chunks(L, size, earlier % size, {}), {questions, q, k, segment.by_head(parts[2])}, shared, state,
      options.cache != nullptr,
      [segment](const ChunkSpan& piece, const TensorList& tokens, const TensorList& constant, TensorList& now) {
        const at::Tensor y = mac_attend(segment, piece, tokens, constant, now);
        return TensorList{y.unsqueeze(1), mac_learn(segment, piece, y, constant, now).unsqueeze(1)};
      });
  if (options.cache) {
    TensorList& kept = layer_state(*options.cache, layer);
    kept = {asked.state};
    kept.insert(kept.end(), after.begin(), after.end());
  }
  return product_.forward(outs[0].squeeze(2), product_.normalized(outs[1].squeeze(2), type), type);
}

}  // namespace

std::unique_ptr<Mixer> make_titans_mac(const ModelConfig& config, int64_t layer, at::Device device) {
  return std::make_unique<TitansMac>(config, layer, device);
}

}  // namespace lazy
