// A model folder as people use it: the weights and the tokenizer that belongs to them.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/model_options.h"

namespace lazy {

struct ModelFolder {
  LanguageModel model;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Loads both. Error when the tokenizer does not match the model (model/tokenizer_match.h).
ModelFolder load_model_folder(const std::filesystem::path& directory, const ModelOptions& options = {});

// The prompt's ids: BOS, where the tokenizer has one and `bos` asks for it, then the text.
std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool bos = true);

// Token by token text that never ends within a UTF-8 character.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int64_t token);  // the complete characters that this token finishes
  std::string finish();             // what is left, made valid
 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace lazy
