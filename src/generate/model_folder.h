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

// The ids that end a text, each once: eos_token_id of the folder's config.json and generation_config.json, where it may
// be a list, and EOS of the tokenizer. Error naming the file if a field is neither an integer nor a list of integers.
std::vector<int64_t> end_tokens(const std::filesystem::path& directory, const ModelConfig& config,
                                const Tokenizer& tokenizer);

// The prompt's ids, with BOS first if `bos` is set and the tokenizer has one.
std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool bos = true);

}  // namespace lazy
