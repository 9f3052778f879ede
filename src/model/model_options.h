// Command-line options that override parts of a model folder: positions, the cache, the weights' precision.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "model/language_model.h"
#include "model/streaming_cache.h"

namespace lazy {

struct ModelOptions {
  std::string positions;  // --positions: "yarn:4", "linear:4", "dynamic:4" over the training length, "none"; "": the
                          // model's own
  double rope_base = 0;   // --rope-base; 0: the model's own
  std::string cache;      // --cache: "streaming:4+508"; "": the full cache
  std::string weights;    // --weights: "int8" (LanguageModel::set_int8); "": as they are
  std::string quantize;   // --quantize: "w8a8,kv4:channel" (model/quantization.h); "": not

  // Returns the configuration with the positions overridden. Error naming the option.
  ModelConfig apply(ModelConfig config) const;
  std::optional<StreamingCache> streaming() const;
  std::string command_line() const;  // the options as given, each preceded by a space
};

// LanguageModel::load with these options.
LanguageModel open_model(const std::filesystem::path& directory, const ModelOptions& options);

}  // namespace lazy
