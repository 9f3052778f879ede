#include "model/language_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "model/activation_hooks.h"
#include "model/blocks/activation_checkpoint.h"
#include "model/blocks/adaptive_tables.h"
#include "model/blocks/decoder_block.h"
#include "model/blocks/linear.h"
#include "model/blocks/shard_hooks.h"
#include "model/blocks/storage.h"
#include "model/checkpoint.h"
#include "model/families/families.h"
#include "model/offloaded_weights.h"
#include "model/paged_keys.h"
#include "model/parameters.h"
#include "model/positions/positions.h"
#include "model/quantization.h"
#include "ops/decode.h"
#include "ops/dense_product.h"
#include "ops/few_rows.h"
#include "ops/linear_cross_entropy.h"
#include "ops/step_layers.h"

namespace lazy {
namespace fs = std::filesystem;

constexpr uint64_t kBiasStream = 0xB1A5, kGateStream = 0x6A7E;

struct LanguageModel::Impl {
  // `empty`: allocates no memory for the trained weights.
  Impl(const ModelConfig& model, at::Device where, bool empty = false) : config(model), device(where), names(model) {
    config.validate();
    config.mlp.intermediate_size = config.intermediate();
    for (ParameterShape& p : parameter_shapes(config)) shapes.emplace(p.name, std::move(p));
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    const auto table = [&] {
      const std::vector<int64_t> shape = {config.vocab_size, config.hidden_size};
      return (empty ? at::empty(shape, options) : at::zeros(shape, options)).requires_grad_(true);
    };
    if (config.adaptive.used) {
      adaptive.emplace(config, options);
    } else {
      embedding = table();
    }
    if (config.norm.embedding_norm) embedding_norm = make_norm(config, device);
    if (config.positions.kind == PositionKind::learned) {
      position_table = at::zeros({config.max_length, config.hidden_size}, options).requires_grad_(true);
    }
    for (int64_t i = 0; i < config.num_layers; ++i) {
      blocks.emplace_back(config, i, device);
      if (empty) release_weights(blocks.back());
    }
    if (config.norm.final_norm) final_norm = make_norm(config, device);
    if (!config.tie_embeddings && !adaptive) head = table();
    if (device.is_cuda()) step_counter = at::zeros({1}, options.dtype(at::kInt));
    collect();
  }

  static void release_weights(const DecoderBlock& block) {
    const auto take = [](const NamedTensors& tensors) {
      for (const auto& [name, tensor] : tensors) {
        if (tensor.requires_grad()) release_storage(tensor.storage());
      }
    };
    take(block.mixer->parameters());
    if (block.mlp) take(block.mlp->parameters());
    return_free_memory();
  }

  // Collects all tensors of the checkpoint in order; `trained` excludes fixed offsets.
  void collect() {
    const auto add = [&](const std::string& name, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      stored.emplace_back(name, tensor);
      if (tensor.requires_grad()) shard_units.back().parameters.push_back(stored.back());
    };
    shard_units.emplace_back();
    add(names.embedding, embedding);
    for (const auto& [name, tensor] : adaptive ? adaptive->parameters() : NamedTensors()) add(name, tensor);
    add(names.embedding_norm, embedding_norm.weight);
    add(names.embedding_norm_bias, embedding_norm.bias);
    add(names.positions, position_table);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const DecoderBlock& block = blocks[i];
      const std::string layer = names.layer(static_cast<int64_t>(i));
      shard_units.push_back({{}, block.mixer->products()});
      add(layer + names.mixer_norm, block.mixer_norm.weight);
      add(layer + names.mixer_norm_bias, block.mixer_norm.bias);
      for (const auto& [name, tensor] : block.mixer->parameters()) add(layer + name, tensor);
      if (!block.mlp) continue;
      for (const Linear* product : block.mlp->products()) shard_units.back().products.push_back(product);
      add(layer + names.mlp_norm, block.mlp_norm.weight);
      add(layer + names.mlp_norm_bias, block.mlp_norm.bias);
      for (const auto& [name, tensor] : block.mlp->parameters()) add(layer + name, tensor);
    }
    shard_units.emplace_back();
    add(names.final_norm, final_norm.weight);
    add(names.final_norm_bias, final_norm.bias);
    if (head.defined()) {
      shard_units.emplace_back();
      add(names.head, head);
    }
    for (const auto& item : stored) {
      if (item.second.requires_grad()) trained.push_back(item);
    }
  }

  void initialize(uint64_t seed) {
    const at::NoGradGuard guard;
    at::Generator generator = at::detail::createCPUGenerator(seed);
    // Of distance biases with distance_bias_init_apart.
    at::Generator apart = at::detail::createCPUGenerator(seed ^ kBiasStream);
    at::Generator gates = at::detail::createCPUGenerator(seed ^ kGateStream);
    // Drawn on the CPU for every device, so that a seed gives the same weights everywhere.
    const auto on_cpu = [](const at::Tensor& t) { return at::zeros(t.sizes(), at::TensorOptions().dtype(at::kFloat)); };
    const auto normal = [&](const at::Tensor& t, double std) { t.copy_(on_cpu(t).normal_(0, std, generator)); };
    if (embedding.defined()) normal(embedding, config.init_std);
    for (const auto& [name, tensor] : adaptive ? adaptive->parameters() : NamedTensors()) {
      if (tensor.dim() > 1) normal(tensor, config.init_std);
    }
    if (position_table.defined()) normal(position_table, config.init_std);
    for (const DecoderBlock& block : blocks) {
      for (const auto& [name, tensor] : block.mixer->parameters()) {
        at::Tensor fresh = on_cpu(tensor);
        const bool bias_apart = config.attention.distance_bias_init_apart && name == names.distance_bias;
        at::Generator& own = bias_apart ? apart : name == names.output_gate ? gates : generator;
        if (block.mixer->init_parameter(name, fresh, config, own)) tensor.copy_(fresh);
      }
      if (!block.mlp) continue;
      for (const auto& [name, tensor] : block.mlp->parameters()) {
        if (tensor.dim() > 1) normal(tensor, config.init_std_of(name));
      }
    }
    if (head.defined()) normal(head, config.init_std);
  }

  void require_resident_weights(const char* what) const {
    if (loader) fail("model", "{}: expected a model in memory, found one that is read a layer at a time", what);
  }

  const ParameterShape& shape(const std::string& name) const {
    const auto found = shapes.find(name);
    if (found == shapes.end()) fail("model", "parameter {}: expected one of the model's", name);
    return found->second;
  }

  // The attention terms of a layer; empty for other mixers.
  ops::AttentionTerms terms(int64_t layer) const {
    return blocks.at(static_cast<size_t>(layer)).mixer->attention_terms().value_or(ops::AttentionTerms());
  }
  void require_attention(int64_t layer) const {
    if (!blocks.at(static_cast<size_t>(layer)).mixer->attention_terms())
      fail("model", "expected attention in layer {}, found {}", layer, name(config.mixer_of(layer)));
  }

  // The input of the first layer; `options` gives the token positions.
  at::Tensor embed(const at::Tensor& ids, const ForwardOptions& options) const {
    const LayerHooks hooks(options.activation_hooks, -1);
    const at::Tensor tokens =
        hooks("embedding.tokens", adaptive ? adaptive->embed(ids) : at::embedding(embedding, ids));
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
  // The results of ops::linear_cross_entropy; hidden (tokens, hidden_size).
  std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy(const at::Tensor& hidden, const at::Tensor& labels) {
    return adaptive ? adaptive->cross_entropy(hidden, labels)
                    : ops::linear_cross_entropy(hidden, head_matrix(), labels);
  }
  void check(const at::Tensor& ids, const ForwardOptions& options) const;
  void quantize();  // as `quantization` says
  // begin: the stream before the first layer. The hidden states are those after the last norm.
  ResidualStream begin(const at::Tensor& ids, const ForwardOptions& options) const;
  at::Tensor final_hidden(ResidualStream stream, const ForwardOptions& options) const;
  void forward_layer(size_t index, ResidualStream& stream, const ForwardOptions& options, at::Tensor* stats) const;
  // All layers in one kernel. Returns false where they are not such a step's.
  bool step_layers(ResidualStream& stream, const ForwardOptions& options) const;
  std::vector<ForwardResult> run(const std::vector<at::Tensor>& batches, ForwardOptions options,
                                 const std::function<void(double)>& step) const;
  const at::Tensor& head_leaf() const { return head.defined() ? head : embedding; }
  // The head in the compute dtype: differentiable if autograd is enabled, else cast once and cached, unless the weights
  // are sharded or offloaded.
  at::Tensor head_matrix() {
    return at::GradMode::is_enabled() || hooks ? head_leaf().to(dtype) : head_cast.get(head_leaf(), dtype);
  }

  // A weight of the layer, or a copy if the weights are sharded or offloaded.
  at::Tensor materialize(int64_t layer, const at::Tensor& weight) const {
    if (!hooks || !weight.defined()) return weight;
    const ScopedUnshard use(hooks, unit_of(layer));
    return weight.detach().clone();
  }

  // Indices in `shard_units`.
  static constexpr size_t kEmbedding = 0;
  static size_t unit_of(int64_t layer) { return static_cast<size_t>(layer) + 1; }
  size_t final_norm_unit() const { return blocks.size() + 1; }
  size_t head_unit() const { return head.defined() ? blocks.size() + 2 : kEmbedding; }

  ModelConfig config;
  at::Device device;
  CheckpointNames names;
  std::map<std::string, ParameterShape> shapes;  // by name
  at::Tensor embedding, position_table, head;    // head is undefined if tied to the embedding
  std::optional<AdaptiveTables> adaptive;        // replaces embedding and head
  NormWeights embedding_norm, final_norm;
  std::vector<DecoderBlock> blocks;
  CastCache head_cast;
  at::Tensor step_counter;  // on a GPU: see ops::StepLayers
  ops::Int8Matrix head_int8;
  NamedTensors stored, trained;
  std::vector<ShardUnit> shard_units;
  ShardHooks* hooks = nullptr;
  std::unique_ptr<OffloadedWeights> loader;  // offloaded models: also their shard hooks
  at::ScalarType dtype = at::kFloat;
  Checkpointing checkpointing = Checkpointing::none;
  bool deterministic = false;
  Quantization quantization;
};

LanguageModel::LanguageModel(const ModelConfig& config, uint64_t seed)
    : impl_(std::make_unique<Impl>(config, at::kCPU)) {
  impl_->initialize(seed);
}
LanguageModel::~LanguageModel() = default;
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;

const ModelConfig& LanguageModel::config() const { return impl_->config; }
at::ScalarType LanguageModel::compute_dtype() const { return impl_->dtype; }
at::Device LanguageModel::device() const { return impl_->device; }
const NamedTensors& LanguageModel::parameters() const { return impl_->trained; }
const std::vector<ShardUnit>& LanguageModel::shard_units() const { return impl_->shard_units; }
void LanguageModel::set_shard_hooks(ShardHooks* hooks) { impl_->hooks = hooks; }
void LanguageModel::set_tokenizer_fingerprint(uint64_t fingerprint) {
  impl_->config.tokenizer_fingerprint = fingerprint;
}

void LanguageModel::set_compute_dtype(at::ScalarType dtype) {
  impl_->require_resident_weights("another precision");
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    fail("model", "compute dtype: expected float32 or bfloat16, found {}", at::toString(dtype));
  }
  impl_->dtype = dtype;
}

void LanguageModel::set_fp8(bool fp8) {
  impl_->require_resident_weights("8-bit products");
  for (const DecoderBlock& block : impl_->blocks) {
    for (const Linear* product : block.mixer->products()) product->set_fp8(fp8);
    if (!block.mlp) continue;
    for (const Linear* product : block.mlp->products()) product->set_fp8(fp8);
  }
}

void LanguageModel::set_int8() {
  impl_->require_resident_weights("8-bit weights");
  for (const DecoderBlock& block : impl_->blocks) {
    for (const Linear* product : block.mixer->products()) product->set_int8();
    if (!block.mlp) continue;
    for (const Linear* product : block.mlp->products()) product->set_int8();
  }
  if (impl_->adaptive) return;
  const at::NoGradGuard guard;
  const at::Tensor head = impl_->head_leaf();
  impl_->head_int8 = ops::quantize_int8(head.detach());
  head.detach().copy_(ops::dequantize(impl_->head_int8));
}

void LanguageModel::hold_compute_dtype() {
  impl_->require_resident_weights("weights in one precision");
  const at::NoGradGuard guard;
  const at::ScalarType dtype = impl_->dtype;
  for (const DecoderBlock& block : impl_->blocks) {
    for (const Linear* product : block.mixer->products()) product->hold_in(dtype);
    if (!block.mlp) continue;
    for (const Linear* product : block.mlp->products()) product->hold_in(dtype);
  }
  for (at::Tensor table : {impl_->embedding, impl_->head}) {
    if (table.defined()) table.set_data(table.detach().to(dtype));
  }
  impl_->head_cast = {};
}

void LanguageModel::Impl::quantize() {
  bool cached = false;
  for (const DecoderBlock& block : blocks) {
    std::vector<const Linear*> products = block.mixer->products();
    if (block.mlp) {
      for (const Linear* product : block.mlp->products()) products.push_back(product);
    }
    for (const Linear* product : products) {
      if (quantization.weights.used()) product->round_weights(quantization.weights);
      product->set_input_rounding(quantization.inputs);
    }
    cached |= block.mixer->set_cache_rounding(quantization.cache);
  }
  if (quantization.cache.used() && !cached)
    fail("model", "quantized caches: expected layers that cache keys and values, found {}", config.kind());
}

void LanguageModel::quantize(const Quantization& quantization) {
  impl_->require_resident_weights("rounded weights");
  impl_->quantization = quantization;
  impl_->quantize();
}

void LanguageModel::set_checkpointing(Checkpointing checkpointing) { impl_->checkpointing = checkpointing; }
void LanguageModel::set_deterministic(bool deterministic) { impl_->deterministic = deterministic; }

Checkpointing checkpointing_from(const std::string& name) {
  if (const auto found = kCheckpointings.find(name)) return *found;
  fail("model", "activation checkpointing: expected none, mlp, attention or full, found '{}'", name);
}

void LanguageModel::to(at::Device device) {
  if (device == impl_->device) return;
  impl_->require_resident_weights("another device");
  auto moved = std::make_unique<Impl>(impl_->config, device);
  const at::NoGradGuard guard;
  for (size_t i = 0; i < moved->stored.size(); ++i) moved->stored[i].second.copy_(impl_->stored[i].second);
  moved->dtype = impl_->dtype;
  moved->checkpointing = impl_->checkpointing;
  moved->deterministic = impl_->deterministic;
  moved->quantization = impl_->quantization;
  if (moved->quantization.used()) moved->quantize();
  impl_ = std::move(moved);
}

// Error with the reason if the pass is not supported.
void LanguageModel::Impl::check(const at::Tensor& ids, const ForwardOptions& options) const {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    fail("model", "ids: expected int64 (batch, length), found {} with {} dimensions", at::toString(ids.scalar_type()),
         ids.dim());
  }
  if (loader && at::GradMode::is_enabled()) require_resident_weights("gradients");
  if (quantization.used() && at::GradMode::is_enabled())
    fail("model", "rounded products and caches serve inference: disable gradients first");
  if (options.cache && at::GradMode::is_enabled())
    fail("model", "a KV cache serves inference: disable gradients first");
  if (options.packed && options.cache) fail("model", "packed sequences: expected no cache, found one");
  if (options.paged) {
    const std::string why = why_not_paged(config);
    if (!why.empty()) fail("model", "pages of keys: {}", why);
    if (at::GradMode::is_enabled()) fail("model", "pages of keys serve inference: disable gradients first");
    if (options.cache || options.packed) fail("model", "pages of keys: expected neither a cache nor packed sequences");
    if (ids.size(0) > 1 && ids.size(1) > ops::kFewRows) {
      fail("model", "pages of keys: expected at most {} tokens of each of several sequences, found {}", ops::kFewRows,
           ids.size(1));
    }
  }
  if (options.activation_hooks && options.cache && options.cache->streaming)
    fail("model", "a streaming cache serves no probes");
  const PositionKind positions = config.positions.kind;
  if (options.cache && options.cache->streaming && positions != PositionKind::rope && positions != PositionKind::none) {
    fail("model", "a streaming cache serves RoPE or no positions, found {}", lazy::name(positions));
  }
  if (config.all_attention()) return;
  if (options.packed && options.packed->keys.defined()) {
    fail("model", "packed sequences: {} cannot continue another sequence, expected whole ones",
         name(config.mixer.type));
  }
  if (options.cache && options.cache->streaming) {
    fail("model", "a streaming cache serves models of attention alone, found {}", name(config.mixer.type));
  }
}

ResidualStream LanguageModel::Impl::begin(const at::Tensor& ids, const ForwardOptions& options) const {
  ResidualStream stream;
  stream.branch = embed(ids, options);
  if (config.multipliers.embedding != 1) stream.branch = stream.branch * config.multipliers.embedding;
  if (config.norm.embedding_norm) stream = {normalize(stream, embedding_norm, config.norm.eps).value, {}};
  stream.branch = LayerHooks(options.activation_hooks, -1)("embedding", stream.branch);
  return stream;
}

at::Tensor LanguageModel::Impl::final_hidden(ResidualStream stream, const ForwardOptions& options) const {
  const LayerHooks hooks(options.activation_hooks, -1);
  run_residual_hooks(stream, hooks, "final.residual");
  const at::Tensor hidden = hooks(
      "final.hidden", config.norm.final_norm ? normalize(stream, final_norm, config.norm.eps).value : sum_of(stream));
  // The head is linear.
  return config.multipliers.logits_divisor == 1 ? hidden : hidden / config.multipliers.logits_divisor;
}

// The last layer of a pass with `rows`: after its attention tokens are independent, so only these rows are computed.
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

bool LanguageModel::Impl::step_layers(ResidualStream& stream, const ForwardOptions& options) const {
  const PagedKeys* paged = options.paged;
  if (!step_counter.defined() || !paged || paged->places.defined() || at::GradMode::is_enabled() || hooks ||
      stream.residual.defined() || stream.branch.size(1) != 1 || options.return_stats || options.activation_hooks ||
      options.rows.defined()) {
    return false;
  }
  const at::Tensor x = stream.branch.squeeze(1);
  ops::StepLayers step{.x = x.contiguous(), .eps = config.norm.eps};
  for (size_t i = 0; i < blocks.size(); ++i) {
    ops::StepLayer layer;
    if (!blocks[i].describe(layer, options)) return false;
    layer.keys = paged->keys[i];
    layer.values = paged->values[i];
    step.layers.push_back(std::move(layer));
  }
  step.lengths = paged->lengths;
  step.block_table = paged->block_table;
  step.positions = paged->positions;
  step.slots = paged->slots;
  step.longest = paged->longest;
  step.counter = step_counter;
  const auto terms = ops::step_layers(step);
  if (!terms) return false;
  stream = {terms->first.unsqueeze(1), terms->second.unsqueeze(1)};
  return true;
}

// The loop over the layers: every batch passes a layer before the next layer.
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
  const bool done = streams.size() == 1 && step_layers(streams.front(), options);
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

ForwardResult LanguageModel::forward(const at::Tensor& ids, const ForwardOptions& options) {
  return std::move(impl_->run({ids}, options, {}).front());
}

std::vector<ForwardResult> LanguageModel::forward_each(const std::vector<at::Tensor>& batches,
                                                       const ForwardOptions& options,
                                                       const std::function<void(double)>& step) {
  const at::NoGradGuard no_grad;
  if (options.cache || options.packed || options.rows.defined())
    fail("model", "batches a layer at a time: expected neither a cache nor packed ones");
  return impl_->run(batches, options, step);
}

at::Tensor LanguageModel::logits(const at::Tensor& hidden) {
  if (impl_->hooks && at::GradMode::is_enabled())
    fail("model", "logits: no gradient where weights are sharded; use loss");
  const ScopedUnshard use(impl_->hooks, impl_->head_unit());
  if (impl_->adaptive) return impl_->adaptive->log_probabilities(hidden);
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
  if (at::GradMode::is_enabled()) return at::linear(hidden, impl_->head_matrix()).to(at::kFloat);
  const at::Tensor logits = !ops::serves_few_rows(rows) ? ops::dense_product(rows, impl_->head_matrix())
                            : impl_->head_int8.defined() && rows.is_cpu()
                                ? ops::few_rows_linear(rows, impl_->head_int8)
                                : ops::few_rows_linear(rows, impl_->head_matrix(), /*wide=*/rows.is_cuda());
  std::vector<int64_t> shape = hidden.sizes().vec();
  shape.back() = logits.size(1);
  return logits.to(at::kFloat).view(shape);
}

at::Tensor LanguageModel::loss(const at::Tensor& ids, const at::Tensor& labels) {
  const at::Tensor hidden = forward(ids).hidden;
  const ScopedUnshard use(impl_->hooks, impl_->head_unit());  // the loss computes its gradients in the forward pass
  return std::get<0>(impl_->cross_entropy(hidden.reshape({-1, hidden.size(-1)}), labels.reshape({-1})));
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

bool LanguageModel::decays(const std::string& name) const { return impl_->shape(name).decays(); }
bool LanguageModel::keep_fp32(const std::string& name) const { return impl_->shape(name).keep_fp32; }

at::Tensor LanguageModel::distance_bias(int64_t layer) const {
  return impl_->materialize(layer, impl_->terms(layer).distance_bias);
}
at::Tensor LanguageModel::tau(int64_t layer) const { return impl_->materialize(layer, impl_->terms(layer).tau); }
at::Tensor LanguageModel::sink(int64_t layer) const {
  return impl_->materialize(layer, impl_->terms(layer).options.sink);
}
at::Tensor LanguageModel::alibi_slopes(int64_t layer) const {
  return impl_->materialize(layer, impl_->terms(layer).options.alibi_slopes);
}
AttentionProjections LanguageModel::projections(int64_t layer) const {
  impl_->require_attention(layer);
  if (impl_->loader && impl_->dtype != at::kFloat) impl_->require_resident_weights("projections in fp32");
  AttentionProjections out = *impl_->blocks[static_cast<size_t>(layer)].mixer->attention_projections();
  for (at::Tensor* t : {&out.q, &out.k, &out.v, &out.q_bias, &out.k_bias, &out.v_bias})
    *t = impl_->materialize(layer, *t);
  return out;
}
ops::AttentionTerms LanguageModel::attention_terms(int64_t layer) const {
  impl_->require_attention(layer);
  ops::AttentionTerms terms = impl_->terms(layer);
  for (at::Tensor* t : {&terms.options.sink, &terms.options.alibi_slopes, &terms.distance_bias, &terms.tau})
    *t = impl_->materialize(layer, *t);
  return terms;
}

LanguageModel::LanguageModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// A missing head tensor in the file means that the head is tied.
static void tie_without_head(const WeightsFile& file, ModelConfig& config) {
  if (!has_weight(file, head_name(config))) config.tie_embeddings = true;
}

LanguageModel LanguageModel::load(const fs::path& directory) {
  return load(directory, ModelConfig::from_directory(directory));
}

LanguageModel LanguageModel::load(const fs::path& directory, ModelConfig config) {
  const std::unique_ptr<WeightsFile> file = open_weights(directory);
  tie_without_head(*file, config);
  match_weights(*file, directory, config);  // before memory is allocated for a wrong size in config.json
  LanguageModel model(std::make_unique<Impl>(config, at::kCPU));
  lazy::load_weights(*file, directory, model.impl_->config, model.impl_->stored);
  return model;
}

LanguageModel LanguageModel::load_offloaded(const fs::path& directory, at::Device device, at::ScalarType compute) {
  std::unique_ptr<WeightsFile> file = open_weights(directory);
  ModelConfig config = ModelConfig::from_directory(directory);
  tie_without_head(*file, config);
  auto loader = std::make_unique<OffloadedWeights>(std::move(file), directory, config);
  LanguageModel model(std::make_unique<Impl>(config, device, /*empty=*/true));
  model.set_compute_dtype(compute);
  Impl& impl = *model.impl_;
  loader->take(impl.shard_units, impl.stored, compute);
  impl.loader = std::move(loader);
  impl.hooks = impl.loader.get();
  return model;
}

bool LanguageModel::offloaded() const { return impl_->loader != nullptr; }

void LanguageModel::load_weights(const fs::path& directory) {
  impl_->require_resident_weights("other weights");
  lazy::load_weights(*open_weights(directory), directory, impl_->config, impl_->stored);
}

const std::vector<std::pair<std::string, at::Tensor>>& LanguageModel::stored() const { return impl_->stored; }

void LanguageModel::save(const fs::path& directory, const std::string& dtype) const {
  save(directory, dtype, impl_->stored);
}

void LanguageModel::save(const fs::path& directory, const std::string& dtype, const NamedTensors& tensors) const {
  impl_->require_resident_weights("save");
  if (dtype != "fp32" && dtype != "bf16") fail("model", "save: expected fp32 or bf16, found '{}'", dtype);
  NamedTensors out;
  for (const auto& [name, tensor] : tensors) {
    const bool wide = dtype == "fp32" || keep_fp32(name);
    out.emplace_back(name, wide ? tensor.detach() : tensor.detach().to(at::kBFloat16));
  }
  const ModelConfig& c = impl_->config;
  out = packed(c, out);
  nlohmann::ordered_json config = c.to_json();
  if (c.family ==
      ModelFamily::state_spaces) {  // the original program reads no other fields and requires a tied head by name
    if (c.tie_embeddings) out.emplace_back(impl_->names.head, out.front().second);
  } else {
    config["torch_dtype"] = dtype == "fp32" ? "float32" : "bfloat16";
  }
  const auto token = [](int64_t id) { return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(id); };
  const nlohmann::ordered_json generation = {
      {"_from_model_config", true}, {"bos_token_id", token(c.bos_token_id)}, {"eos_token_id", token(c.eos_token_id)}};
  write_safetensors_sharded(directory, "model", out);
  write_file_atomic(directory / "generation_config.json", generation.dump(2) + "\n");
  write_file_atomic(directory / "config.json", config.dump(2) + "\n");
}

}  // namespace lazy
