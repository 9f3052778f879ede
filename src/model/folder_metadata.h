// Files and settings of a model folder that do not describe the weights: chat template, generation settings, and keys
// of config.json that this program accepts but does not use.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace lazy {

struct SpecialIds {
  std::optional<int32_t> bos, eos;
};

// Copies these files and settings from the model folder `from` to `to`. LanguageModel::save must have written `to` for
// the same model or for the Lazy Attention model that was converted from it. If `from` does not define the ids of the
// special tokens, the ids in `tokenizer` are written.
void keep_metadata(const std::filesystem::path& from, const std::filesystem::path& to, const SpecialIds& tokenizer);

}  // namespace lazy
