// The forward passes of LanguageModel.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/blocks/activation_checkpoint.h"
#include "model/blocks/softcapped_loss.h"
#include "model/language_model_impl.h"
#include "model/paged_keys.h"
#include "model/positions/positions.h"
#include "ops/decode.h"
#include "ops/dense_product.h"
#include "ops/linear_cross_entropy.h"

namespace lazy {

at::Tensor LanguageModel::Impl::embed(const at::Tensor& ids, const ForwardOptions& options) const {
  const LayerHooks hooks(options.activation_hooks, -1);
  const at::Tensor tokens = hooks("embedding.tokens", adaptive ? adaptive->embed(ids) : at::embedding(embedding, ids));
  if (config.positions.kind != PositionKind::learned && config.positions.kind != PositionKind::sinusoidal)
    return tokens.to(dtype);
  const int64_t start = options.cache ? options.cache->length : 0;
  const int64_t end = options.packed  ? options.packed->longest
                      : options.paged ? options.paged->longest
                                      : start + ids.size(1);
  const at::Tensor places = options.packed  ? options.packed->positions
                            : options.paged ? options.paged->positions
                                            : at::arange(start, end, ids.options());
  const at::Tensor positions = config.positions.kind == PositionKind::learned
                                   ? learned_positions(position_table, places, end)
                                   : sinusoidal_positions(places, config.hidden_size);
  return (tokens + hooks("embedding.positions", positions.dim() == 2 ? positions.unsqueeze(0) : positions)).to(dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> LanguageModel::Impl::cross_entropy(const at::Tensor& hidden,
                                                                                  const at::Tensor& labels) {
  if (adaptive) return adaptive->cross_entropy(hidden, labels);
  if (config.multipliers.logits_softcap > 0)
    return softcapped_cross_entropy(hidden, head_matrix(), labels, config.multipliers.logits_softcap);
  return ops::linear_cross_entropy(hidden, head_matrix(), labels);
}

at::Tensor LanguageModel::Impl::head_matrix() {
  return at::GradMode::is_enabled() || hooks ? head_leaf().to(dtype) : head_cast.get(head_leaf(), dtype);
}

void LanguageModel::Impl::check(const at::Tensor& ids, const ForwardOptions& options) const {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    fail("model", "ids: expected int64 (batch, length), found {} with {} dimensions", at::toString(ids.scalar_type()),
         ids.dim());
  }
  if (loader && at::GradMode::is_enabled()) require_resident_weights("gradients");
  if (quantization.used() && at::GradMode::is_enabled())
    fail("model", "quantized models support only inference: disable gradients");
  if (options.cache && at::GradMode::is_enabled())
    fail("model", "a KV cache supports only inference: disable gradients");
  if (options.packed && options.cache) fail("model", "packed sequences cannot be combined with a KV cache");
  if (options.paged) {
    const std::string why = paged_unsupported_reason(config, options.paged->max_length);
    if (!why.empty()) fail("model", "paged KV cache: {}", why);
    if (at::GradMode::is_enabled()) fail("model", "a paged KV cache supports only inference: disable gradients");
    if (options.cache || options.packed)
      fail("model", "a paged KV cache cannot be combined with a contiguous KV cache or packed sequences");
    if (ids.size(0) > 1 && ids.size(1) > ops::kMaxDecodeRows) {
      fail("model", "paged KV cache: expected at most {} tokens per sequence in a batch of several sequences, found {}",
           ops::kMaxDecodeRows, ids.size(1));
    }
  }
  if (options.activation_hooks && options.cache && options.cache->streaming)
    fail("model", "a streaming cache does not support activation hooks (probes)");
  const PositionKind positions = config.positions.kind;
  if (options.cache && options.cache->streaming && positions != PositionKind::rope && positions != PositionKind::none) {
    fail("model", "a streaming cache requires RoPE or no positions, found {}", lazy::name(positions));
  }
  if (config.all_attention()) return;
  if (options.packed && options.packed->keys.defined()) {
    fail("model", "packed sequences: {} cannot continue an earlier sequence; expected complete sequences",
         name(config.mixer.type));
  }
  if (options.cache && options.cache->streaming) {
    fail("model", "a streaming cache requires attention in every layer, found {}", name(config.mixer.type));
  }
}

ResidualStream LanguageModel::Impl::begin(const at::Tensor& ids, const ForwardOptions& options) const {
  ResidualStream stream;
  stream.branch = embed(ids, options);
  if (config.multipliers.embedding != 1) stream.branch = stream.branch * config.multipliers.embedding;
  if (config.multipliers.embedding_by_width) {
    const double scale = std::sqrt(static_cast<double>(config.hidden_size));
    stream.branch = stream.branch * (dtype == at::kBFloat16 ? static_cast<double>(c10::BFloat16(scale)) : scale);
  }
  if (config.norm.embedding_norm) stream = {normalize(stream, embedding_norm, config.norm.eps).value, {}};
  stream.branch = LayerHooks(options.activation_hooks, -1)("embedding", stream.branch);
  return stream;
}

at::Tensor LanguageModel::Impl::final_hidden(ResidualStream stream, const ForwardOptions& options) const {
  const LayerHooks hooks(options.activation_hooks, -1);
  run_residual_hooks(stream, hooks, "final.residual");
  const at::Tensor hidden = hooks(
      "final.hidden", config.norm.final_norm ? normalize(stream, final_norm, config.norm.eps).value : sum_of(stream));
  // Dividing the hidden states is equivalent to dividing the logits, because the head is linear.
  return config.multipliers.logits_divisor == 1 ? hidden : hidden / config.multipliers.logits_divisor;
}

// Computes one layer. If options.rows selects tokens, the last layer computes its MLP only for these tokens, because no
// later operation reads the other tokens.
void LanguageModel::Impl::forward_layer(size_t index, ResidualStream& stream, const ForwardOptions& options,
                                        at::Tensor* stats) const {
  const DecoderBlock& block = blocks[index];
  const auto layer = static_cast<int64_t>(index);
  if (options.rows.defined() && index + 1 == blocks.size()) {
    block.mix(stream, layer, options, stats);
    stream.branch = stream.branch.index_select(1, options.rows);
    if (stream.residual.defined()) stream.residual = stream.residual.index_select(1, options.rows);
    block.feed_forward(stream, layer, options);
    return;
  }
  const bool observed = options.return_stats || options.on_attention_input || options.activation_hooks;
  switch (at::GradMode::is_enabled() && !observed ? checkpointing : Checkpointing::none) {
    case Checkpointing::none:
      block.forward(stream, layer, options, stats);
      break;
    case Checkpointing::mlp:
      block.mix(stream, layer, options, nullptr);
      block.feed_forward(stream, layer, options, /*recompute=*/true);
      break;
    case Checkpointing::attention:
      stream = checkpoint_activations(
          stream, [&block, layer, options](ResidualStream& s) { block.mix(s, layer, options, nullptr); });
      block.feed_forward(stream, layer, options);
      break;
    case Checkpointing::full:
      stream = checkpoint_activations(
          stream, [&block, layer, options](ResidualStream& s) { block.forward(s, layer, options, nullptr); });
      break;
  }
}

bool LanguageModel::Impl::fused_decode_layers(ResidualStream& stream, const ForwardOptions& options) const {
  const PagedKeys* paged = options.paged;
  if (!device.is_cuda() || !paged || paged->sources.defined() || at::GradMode::is_enabled() || hooks ||
      stream.residual.defined() || stream.branch.size(0) * stream.branch.size(1) != 1 || options.return_stats ||
      options.activation_hooks || options.rows.defined()) {
    return false;
  }
  ops::FusedDecodeLayers step{.x = stream.branch.squeeze(1).contiguous(), .eps = config.norm.eps};
  for (size_t i = 0; i < blocks.size(); ++i) {
    ops::FusedDecodeLayer layer;
    if (!blocks[i].describe(layer, options)) return false;
    layer.pages.keys = paged->keys[i];
    layer.pages.values = paged->values[i];
    layer.pages.slots = paged->slots;
    layer.pages.rope.positions = paged->positions;
    layer.pages.longest = paged->longest;
    step.layers.push_back(std::move(layer));
  }
  step.lengths = paged->lengths;
  step.block_table = paged->block_table;
  step.words = &sync_flags;
  const std::optional<at::Tensor> x = ops::fused_decode_layers(step);
  if (!x) return false;
  stream = {x->unsqueeze(1), {}};
  return true;
}

// Computes several batches layer by layer: all batches pass through a layer before the next layer starts.
std::vector<ForwardResult> LanguageModel::Impl::run(const std::vector<at::Tensor>& batches, ForwardOptions options,
                                                    const std::function<void(double)>& step) const {
  for (const at::Tensor& ids : batches) check(ids, options);
  options.deterministic |= deterministic;
  std::vector<ForwardResult> results(batches.size());
  std::vector<ResidualStream> streams;
  {
    const ScopedUnshard use(hooks, kEmbedding);
    for (const at::Tensor& ids : batches) streams.push_back(begin(ids, options));
  }
  const auto total = static_cast<double>(blocks.size() * batches.size());
  const bool done = streams.size() == 1 && fused_decode_layers(streams.front(), options);
  for (size_t i = 0; i < blocks.size() && !done; ++i) {
    const size_t unit = unit_of(static_cast<int64_t>(i));
    run_pre_forward_hooks(hooks, unit, unit + 1, streams);
    for (size_t b = 0; b < batches.size(); ++b) {
      at::Tensor stats;
      forward_layer(i, streams[b], options, options.return_stats ? &stats : nullptr);
      if (options.return_stats) results[b].stats.push_back(stats);
      if (step) step(static_cast<double>(i * batches.size() + b + 1) / total);
    }
    run_post_forward_hooks(hooks, unit, i > 0 ? std::optional(unit - 1) : std::nullopt, streams);
  }
  if (options.cache) {
    const int64_t length = options.cache->length + batches.front().size(1);
    options.cache->length = options.cache->streaming ? std::min(length, options.cache->streaming->size()) : length;
  }
  const size_t last = final_norm_unit();
  run_pre_forward_hooks(hooks, last, {}, streams);
  for (ResidualStream& stream : streams) stream = {final_hidden(std::move(stream), options), {}};
  run_post_forward_hooks(hooks, last, last - 1, streams);
  for (size_t b = 0; b < batches.size(); ++b) results[b].hidden = std::move(streams[b].branch);
  return results;
}

ForwardResult LanguageModel::forward(const at::Tensor& ids) { return forward(ids, {}); }

ForwardResult LanguageModel::forward(const at::Tensor& ids, const ForwardOptions& options) {
  return std::move(impl_->run({ids}, options, {}).front());
}

std::vector<ForwardResult> LanguageModel::forward_each(const std::vector<at::Tensor>& batches,
                                                       const ForwardOptions& options,
                                                       const std::function<void(double)>& step) {
  const at::NoGradGuard no_grad;
  if (options.cache || options.packed || options.rows.defined())
    fail("model", "forward_each: the options cache, packed and rows are not supported");
  return impl_->run(batches, options, step);
}

at::Tensor LanguageModel::logits(const at::Tensor& hidden) {
  if (impl_->hooks && at::GradMode::is_enabled())
    fail("model", "logits: gradients are not supported for sharded weights; use loss()");
  const ScopedUnshard use(impl_->hooks, impl_->head_unit());
  if (impl_->adaptive) return impl_->adaptive->log_probabilities(hidden);
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
  const auto capped = [&](const at::Tensor& logits) {
    return softcapped(logits, impl_->config.multipliers.logits_softcap);
  };
  if (at::GradMode::is_enabled()) return capped(at::linear(hidden, impl_->head_matrix()).to(at::kFloat));
  const at::Tensor logits = !ops::supports_skinny_gemm(rows) ? ops::dense_product(rows, impl_->head_matrix())
                            : impl_->head_int8.defined() && rows.is_cpu()
                                ? ops::skinny_linear(rows, impl_->head_int8)
                                : ops::skinny_linear(rows, impl_->head_matrix(), /*wide=*/rows.is_cuda());
  std::vector<int64_t> shape = hidden.sizes().vec();
  shape.back() = logits.size(1);
  return capped(logits.to(at::kFloat)).view(shape);
}

at::Tensor LanguageModel::loss(const at::Tensor& ids, const at::Tensor& labels) {
  const at::Tensor hidden = forward(ids).hidden;
  // The head may be freed after the forward pass, because cross_entropy() computes the gradients in the forward pass.
  const ScopedUnshard use(impl_->hooks, impl_->head_unit());
  return std::get<0>(impl_->cross_entropy(hidden.reshape({-1, hidden.size(-1)}), labels.reshape({-1})));
}

std::pair<at::Tensor, at::Tensor> LanguageModel::log_likelihood(const at::Tensor& ids, const at::Tensor& labels) {
  return log_likelihood(ids, labels, ForwardOptions());
}

std::pair<at::Tensor, at::Tensor> LanguageModel::log_likelihood(const at::Tensor& ids, const at::Tensor& labels,
                                                                const ForwardOptions& options) {
  const at::NoGradGuard guard;
  const at::Tensor hidden = forward(ids, options).hidden;
  const ScopedUnshard use(impl_->hooks, impl_->head_unit());
  const auto [loss, log_prob, best] = impl_->cross_entropy(hidden.reshape({-1, hidden.size(-1)}), labels.reshape({-1}));
  return {log_prob.view(labels.sizes()), best.view(labels.sizes())};
}

std::pair<at::Tensor, at::Tensor> LanguageModel::log_likelihood(const PackedSequences& packed, const at::Tensor& rows,
                                                                const at::Tensor& labels) {
  const at::NoGradGuard guard;
  ForwardOptions options;
  options.packed = &packed;
  options.rows = rows;
  const at::Tensor hidden = forward(packed.ids.unsqueeze(0), options).hidden;
  const ScopedUnshard use(impl_->hooks, impl_->head_unit());
  const auto [loss, log_prob, best] = impl_->cross_entropy(hidden.squeeze(0), labels);
  return {log_prob, best};
}

}  // namespace lazy
