// Hugging Face's tokenizer.json: typed access to its fields, and the readers of its two forms, byte-level BPE and
// SentencePiece-style BPE.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "data/json_summary.h"
#include "data/tokenizers/bpe.h"

namespace lazy {

using Json = nlohmann::json;

// A value inside the file together with its place for messages: "tokenizer.json: model.vocab".
struct Node {
  const Json* json;
  std::string place;

  [[noreturn]] void expected(const std::string& what) const {
    fail("tokenizer", "{}: expected {}, found {}", place, what, json ? json_summary(*json) : "nothing");
  }
  bool present() const { return json && !json->is_null(); }
  Node at(const std::string& key) const {
    if (!json->is_object()) expected("an object");
    const auto found = json->find(key);
    return {found == json->end() ? nullptr : &*found, place.ends_with(": ") ? place + key : place + "." + key};
  }
  Node at(size_t index) const { return {&(*json)[index], fmt::format("{}[{}]", place, index)}; }
  size_t size() const {
    if (!json || !json->is_array()) expected("a list");
    return json->size();
  }
  std::string string() const {
    if (!json || !json->is_string()) expected("a string");
    return json->get<std::string>();
  }
  bool boolean(bool fallback) const {
    if (!present()) return fallback;
    if (!json->is_boolean()) expected("true or false");
    return json->get<bool>();
  }
};

struct TokenizerJson {
  explicit TokenizerJson(const std::filesystem::path& path);
  Node root() const { return {&json, path.string() + ": "}; }
  // BPE over characters with byte_fallback (Llama 2, Mistral), as opposed to byte-level BPE.
  bool is_sentencepiece() const;

  std::filesystem::path path;
  std::string text;
  Json json;
};

void read_added_tokens(const Node& list, BpeDefinition& definition);
// A merge is "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const Node& entry);

BpeDefinition read_byte_level(TokenizerJson file);
std::unique_ptr<Tokenizer> make_sentencepiece_json(TokenizerJson file);

}  // namespace lazy
