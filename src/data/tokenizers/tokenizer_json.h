// Hugging Face's tokenizer.json: typed access to its fields, and the readers of its two forms, byte-level BPE and
// SentencePiece-style BPE.
#pragma once
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/json_field.h"
#include "data/tokenizers/bpe.h"

namespace lazy {

using Json = nlohmann::json;

struct TokenizerJson {
  explicit TokenizerJson(const std::filesystem::path& path);
  JsonField root() const { return {"tokenizer", json, path.string()}; }
  // BPE over characters with byte_fallback (Llama 2, Mistral), as opposed to byte-level BPE.
  bool is_sentencepiece() const;

  std::filesystem::path path;
  std::string text;
  Json json;
};

void read_added_tokens(const JsonField& list, BpeDefinition& definition);
// A merge is "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const JsonField& entry);

BpeDefinition read_byte_level(TokenizerJson file);
std::unique_ptr<Tokenizer> make_sentencepiece_json(TokenizerJson file);

}  // namespace lazy
