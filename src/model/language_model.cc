#include "model/language_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "model/blocks/storage.h"
#include "model/families/families.h"
#include "model/language_model_impl.h"
#include "model_card.h"

namespace lazy {
namespace fs = std::filesystem;

constexpr uint64_t kBiasStream = 0xB1A5, kGateStream = 0x6A7E;

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

LanguageModel::Impl::Impl(const ModelConfig& model, at::Device where, bool empty)
    : config(model), device(where), names(model) {
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
  collect();
}

void LanguageModel::Impl::collect() {
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
    add(layer + names.mixer_output_norm, block.mixer_output_norm.weight);
    if (!block.mlp) continue;
    for (const Linear* product : block.mlp->products()) shard_units.back().products.push_back(product);
    add(layer + names.mlp_norm, block.mlp_norm.weight);
    add(layer + names.mlp_output_norm, block.mlp_output_norm.weight);
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

void LanguageModel::Impl::initialize(uint64_t seed) {
  const at::NoGradGuard guard;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  // Separate random streams: `apart` for the distance biases if distance_bias_init_apart is set, `gates` for the
  // weights of the attention gates.
  at::Generator apart = at::detail::createCPUGenerator(seed ^ kBiasStream);
  at::Generator gates = at::detail::createCPUGenerator(seed ^ kGateStream);
  // Values are drawn on the CPU for every device, so that a seed gives the same weights everywhere.
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

void LanguageModel::Impl::require_resident_weights(const char* what) const {
  if (loader) fail("model", "{}: not supported for offloaded models, whose weights are read layer by layer", what);
}

const ParameterShape& LanguageModel::Impl::shape(const std::string& name) const {
  const auto found = shapes.find(name);
  if (found == shapes.end()) fail("model", "the model has no parameter {}", name);
  return found->second;
}

ops::AttentionTerms LanguageModel::Impl::terms(int64_t layer) const {
  return blocks.at(static_cast<size_t>(layer)).mixer->attention_terms().value_or(ops::AttentionTerms());
}

void LanguageModel::Impl::require_attention(int64_t layer) const {
  if (!blocks.at(static_cast<size_t>(layer)).mixer->attention_terms())
    fail("model", "layer {}: expected an attention layer, found the mixer {}", layer, name(config.mixer_of(layer)));
}

at::Tensor LanguageModel::Impl::materialize(int64_t layer, const at::Tensor& weight) const {
  if (!hooks || !weight.defined()) return weight;
  const ScopedUnshard use(hooks, unit_of(layer));
  return weight.detach().clone();
}

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
  impl_->require_resident_weights("setting the compute precision");
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
  impl_->require_resident_weights("keeping weights only in the compute dtype");
  const at::NoGradGuard guard;
  const at::ScalarType dtype = impl_->dtype;
  for (const DecoderBlock& block : impl_->blocks) {
    for (const Linear* product : block.mixer->products()) product->convert_weights_to(dtype);
    if (!block.mlp) continue;
    for (const Linear* product : block.mlp->products()) product->convert_weights_to(dtype);
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
    fail("model", "a quantized KV cache is not supported for models of kind {}", config.kind());
}

void LanguageModel::quantize(const Quantization& quantization) {
  impl_->require_resident_weights("quantization");
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

LanguageModel LanguageModel::load(const fs::path& directory) {
  return load(directory, ModelConfig::from_directory(directory));
}

LanguageModel LanguageModel::load(const fs::path& directory, ModelConfig config) {
  const std::unique_ptr<WeightsFile> file = open_weights(directory);
  tie_without_head(*file, config);
  match_weights(*file, directory, config);  // rejects wrong sizes in config.json before memory is allocated
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

LanguageModel LanguageModel::converted(const ModelConfig& config) const {
  impl_->require_resident_weights("conversion");
  LanguageModel out(std::make_unique<Impl>(config, impl_->device));
  const CheckpointNames names(config);
  const bool new_bias = impl_->config.attention.distance_bias_window == 0;
  // The tensors of both models are in the same order, even if their names differ. Only tau and the distance bias exist
  // in the new model alone.
  const at::NoGradGuard no_grad;
  size_t next = 0;
  for (const auto& [name, tensor] : out.impl_->stored) {
    if (name.ends_with(names.offset) || (new_bias && name.ends_with(names.distance_bias))) continue;
    if (next == impl_->stored.size() || impl_->stored[next].second.sizes() != tensor.sizes())
      fail("model", "conversion: no weight of the source model corresponds to {}", name);
    tensor.copy_(impl_->stored[next++].second);
  }
  if (next != impl_->stored.size())
    fail("model", "conversion: the converted model has no weight that corresponds to {}", impl_->stored[next].first);
  out.impl_->config.tokenizer_fingerprint = impl_->config.tokenizer_fingerprint;
  out.set_compute_dtype(impl_->dtype);
  return out;
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
  // The original program of the family state_spaces does not read torch_dtype, so the field is not written. That
  // program also requires the head as a separate tensor in the file, even if the head is tied to the embedding.
  if (c.family == ModelFamily::state_spaces) {
    if (c.tie_embeddings) out.emplace_back(impl_->names.head, out.front().second);
  } else {
    config["torch_dtype"] = dtype == "fp32" ? "float32" : "bfloat16";
  }
  const auto token = [](int64_t id) { return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(id); };
  const nlohmann::ordered_json generation = {
      {"_from_model_config", true}, {"bos_token_id", token(c.bos_token_id)}, {"eos_token_id", token(c.eos_token_id)}};
  write_safetensors_sharded(directory, "model", out);
  write_file_atomic(directory / "generation_config.json", generation.dump(2) + "\n");
  if (c.architecture().starts_with("Lazy")) write_file_atomic(directory / "README.md", kModelCard);
  write_file_atomic(directory / "config.json", config.dump(2) + "\n");
}

}  // namespace lazy
