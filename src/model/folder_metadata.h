// Files and settings of a model folder that belong to its text rather than to its weights: chat template, generation
// settings, and keys of config.json that this program accepts without reading them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace lazy {

struct SpecialIds {
  std::optional<int32_t> bos, eos;
};

// Copies them from the model folder `from` to `to`, a folder that LanguageModel::save wrote for the same model, or for
// its conversion. Where `from` leaves the ids of special tokens open, those of its `tokenizer` are written.
void keep_metadata(const std::filesystem::path& from, const std::filesystem::path& to, const SpecialIds& tokenizer);

}  // namespace lazy
