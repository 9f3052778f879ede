#include "served_folder.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include "common_options.h"
#include "model_path.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/stop.h"
#include "model/context_length.h"
#include "model/device.h"
#include "model/quantization.h"

namespace lazy::cli {

void add_serving_options(CLI::App& command, ServingOptions& options, const std::string& memory) {
  add_placement_options(command, options.device, options.dtype);
  add_model_options(command, options.model);
  command
      .add_option("--cache-gib", options.cache_gib, "GiB of memory per model for keys, values and states (KV cache)")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6))
      ->group(memory);
  command
      .add_option("--max-model-len", options.engine.max_model_len,
                  "Maximum number of prompt and generated tokens per request; 0: the model's context length")
      ->capture_default_str()
      ->check(kNonNegative)
      ->group(memory);
}

namespace {

// Returns the size of the folder's weights in GiB.
double weights_gib(const std::string& path) {
  uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    if (file.path().extension() == ".safetensors") bytes += file.file_size();
  }
  return static_cast<double>(bytes) / (1 << 30);
}

// Loads a model folder. Checks the options first, before the weights are read.
ModelFolder load_with_message(const char* operation, const std::string& path, const std::string& name,
                              const ServingOptions& options) {
  check_cache_size(operation, options.cache_gib, resolve_device(options.device));
  options.model.apply(ModelConfig::from_directory(path));
  options.model.streaming();
  if (!options.model.quantize.empty()) Quantization::parse(options.model.quantize, "--quantize");
  log::info("{}: loading {:.2f} GiB of weights{}", name, weights_gib(path), path == name ? "" : " from " + path);
  return load_model_folder(path, options.model);
}

// Warns if the size of the KV cache limits requests to fewer tokens than the model or --max-model-len allows.
void check_cache_tokens(const std::string& name, const ModelConfig& config, const ServingOptions& options,
                        int64_t cached) {
  const int64_t given = options.engine.max_model_len, wanted = given > 0 ? given : context_length(config);
  if (options.engine.streaming || cached >= wanted) return;
  log::warn("{}: the cache of {:g} GiB (--cache-gib) has capacity for {} tokens, fewer than {} {}: max_model_len is {}",
            name, options.cache_gib, cached, given > 0 ? "--max-model-len" : "the context length of the model,", wanted,
            cached);
}

// Warns if requests may be longer than the context on which the model was trained. Throws an Error if they would need
// learned position embeddings that the model does not have.
void check_max_model_len(const char* operation, const std::string& name, const ModelConfig& config,
                         const EngineOptions& options) {
  const int64_t length = context_length(config);
  if (options.streaming || options.max_model_len <= length) return;
  if (config.positions.kind == PositionKind::learned) {
    fail(operation, "--max-model-len: {} has learned positions for {} tokens: expected at most {}, found {}", name,
         length, length, options.max_model_len);
  }
  log::warn(
      "{}: --max-model-len {} exceeds the model's context length of {} tokens; the quality of longer texts may be poor",
      name, options.max_model_len, length);
}

}  // namespace

ServedFolder::ServedFolder(const char* operation, const std::string& path, const std::string& name,
                           ServingOptions options)
    : folder(load_with_message(operation, path, name, options)), cache_gib_(options.cache_gib) {
  const std::string device = resolve_device(options.device), dtype = resolve_dtype(options.dtype, device);
  place_model(folder.model, device, dtype);
  options.engine.cache_bytes = static_cast<int64_t>(options.cache_gib * (1 << 30));
  options.engine.streaming = options.model.streaming();
  check_max_model_len(operation, name, folder.model.config(), options.engine);
  engine = std::make_unique<Engine>(folder.model, options.engine);

  const ModelConfig& config = folder.model.config();
  model.id = name;
  model.tokenizer = std::move(folder.tokenizer);
  model.engine = engine.get();
  // The inspector runs a complete forward pass. With a streaming cache, it would report weights on keys that the cache
  // has evicted. Therefore the inspector stays null in this case.
  if (config.num_attention_layers() > 0 && !options.engine.streaming) {
    inspector = std::make_unique<AttentionInspector>(*engine, folder.model);
  }
  model.attention = inspector.get();
  model.special_tokens = serve::special_tokens_of(*model.tokenizer);
  model.chat_template = serve::read_chat_template(path, operation);
  if (!model.chat_template.empty()) {
    try {
      model.chat = std::make_shared<serve::ChatTemplate>(
          model.chat_template, serve::template_variables(model.tokenizer->tokens()), operation);
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      model.chat_problem = error.what();
    }
  }
  model.stop_tokens = end_tokens(path, config, *model.tokenizer);
  model.vocab_size = config.vocab_size;
  model.longest_piece = serve::longest_piece_of(*model.tokenizer);
  model.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  check_cache_tokens(name, config, options, engine->cache_tokens());
  log::info("loaded in {:.1f} s: {}{}{} on {}", seconds_since(begin), dtype,
            options.model.weights.empty() ? "" : ", weights " + options.model.weights,
            options.model.quantize.empty() ? "" : ", quantized to " + options.model.quantize, device);
}

std::string ServedFolder::limits() const {
  const int64_t cached = engine->cache_tokens();
  return fmt::format(
      "context length {}, cache {}{:g} GiB, up to {} tokens per request, {}", context_length(folder.model.config()),
      cached < std::numeric_limits<int64_t>::max() ? fmt::format("of {} tokens in ", cached) : "of states in ",
      cache_gib_, engine->max_request_tokens(),
      model.chat                    ? "chat template"
      : model.chat_template.empty() ? "no chat template"
                                    : "unusable chat template");
}

}  // namespace lazy::cli
