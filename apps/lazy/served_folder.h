// A model folder with its tokenizer, chat template and engine, as `lazy serve` and `lazy chat` use it.
#pragma once
#include <memory>
#include <string>

#include "command.h"

#include "core/clock.h"
#include "generate/model_folder.h"
#include "model/model_options.h"
#include "serve/attention_inspector.h"
#include "serve/engine.h"
#include "serve/openai/served_model.h"

namespace lazy::cli {

struct ServingOptions {
  std::string device = "auto", dtype = "auto";
  double cache_gib = 1;
  EngineOptions engine;  // cache_bytes and streaming are set from the other fields
  ModelOptions model;
};

// Adds --device, --dtype and the options of add_model_options(), and, in the help group `memory`, --cache-gib and
// --max-model-len.
void add_serving_options(CLI::App& command, ServingOptions& options, const std::string& memory);

// The engine refers to the model of the folder, so this struct must not be copied or moved.
struct ServedFolder {
  ServedFolder(const char* operation, const std::string& path, const std::string& name, ServingOptions options);
  ServedFolder(const ServedFolder&) = delete;
  ServedFolder& operator=(const ServedFolder&) = delete;
  // Returns the limits of requests, for the log of a server: context length, cache, tokens per request, chat template.
  std::string limits() const;

  Clock::time_point begin = Clock::now();  // when loading began; declared first because `folder` loads the model
  ModelFolder folder;                      // the constructor moves the tokenizer of `folder` to `model`
  std::unique_ptr<Engine> engine;
  std::unique_ptr<AttentionInspector> inspector;  // null if the model has no attention weights to report
  serve::ServedModel model;

 private:
  double cache_gib_;
};

}  // namespace lazy::cli
