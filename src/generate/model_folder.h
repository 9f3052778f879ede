// A model folder with its tokenizer, and the conversion between text and token ids for generation.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
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

// Loads the model and the tokenizer. Throws Error if the tokenizer does not match the model (model/config.h).
ModelFolder load_model_folder(const std::filesystem::path& directory, const ModelOptions& options = {});

// Writes a model folder into the existing folder `target`: `model` in the precision `dtype`, the tokenizer, and the
// chat template and settings of `source`, the folder that `model` was loaded or converted from.
void save_model_folder(const LanguageModel& model, const Tokenizer& tokenizer, const std::filesystem::path& source,
                       const std::filesystem::path& target, const std::string& dtype);

// Returns the ids that end a text, without duplicates: eos_token_id of the folder's config.json and
// generation_config.json (an integer or a list), and the tokenizer's EOS. Throws Error that names the file if a field
// is neither an integer nor a list of integers.
std::vector<int64_t> end_tokens(const std::filesystem::path& directory, const ModelConfig& config,
                                const Tokenizer& tokenizer);

// Encodes a prompt. If `add_special_tokens` is true, adds the ids that the tokenizer of transformers puts before and
// after a text (usually BOS), if any.
std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens = true);

// Throws Error "OPERATION: ..." if an id has no row in the model's embedding. This can happen because a tokenizer may
// have more tokens than the model.
void check_embedding_rows(std::span<const int32_t> ids, const ModelConfig& config, const Tokenizer& tokenizer,
                          const char* operation);

}  // namespace lazy
