// A model folder with its tokenizer, and the conversion between text and token ids for generation.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "generate/text_stream.h"
#include "model/model_options.h"

namespace lazy {

struct ModelFolder {
  LanguageModel model;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Loads both. Error when the tokenizer does not match the model (model/config.h).
ModelFolder load_model_folder(const std::filesystem::path& directory, const ModelOptions& options = {});

// The ids that end a text: EOS of the model and of the tokenizer, each once.
std::vector<int64_t> end_tokens(const ModelConfig& config, const Tokenizer& tokenizer);

// The prompt's ids, with BOS first if `bos` is set and the tokenizer has one.
std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool bos = true);

}  // namespace lazy
