// Command-line options that override parts of a model folder: the positions, the cache, and the precision of the
// weights.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "model/language_model.h"
#include "model/streaming_cache.h"

namespace lazy {

struct ModelOptions {
  // --positions: "yarn:4", "linear:4" or "dynamic:4" extend the training length by a factor of 4; "none": no RoPE
  // scaling; "": the model's own setting.
  std::string positions;
  double rope_base = 0;  // --rope-base; 0: the model's own base
  std::string cache;     // --cache: tokens to retain, "streaming:4+508" for the first 4 and the last 508; "": all
  std::string weights;   // --weights: "int8" rounds them to int8 (LanguageModel::set_int8); "": not rounded
  std::string quantize;  // --quantize: formats such as "w8a8,kv4:channel" (model/quantization.h); "": not quantized

  // Returns the configuration with the positions overridden. Throws an Error that names the option if a value is
  // invalid.
  ModelConfig apply(ModelConfig config) const;
  std::optional<StreamingCache> streaming() const;
  std::string command_line() const;  // the options as given on the command line, each preceded by a space
};

// Calls LanguageModel::load with these options.
LanguageModel open_model(const std::filesystem::path& directory, const ModelOptions& options);

}  // namespace lazy
