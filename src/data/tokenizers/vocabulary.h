// Reads the vocabulary of byte-level BPE from its files, in which tokens and merges are spelled in printable
// characters.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "data/tokenizers/bpe.h"

namespace lazy {

// Throws Error unless 0 <= id < vocab_size.
void check_token_id(int32_t id, int64_t vocab_size);

// Stores the tokens and merges of the files in a BpeDefinition.
class BpeVocabulary {
 public:
  // `vocab` is {"token in printable characters": id}. `field` identifies it in errors ("vocab.json", "tokenizer.json:
  // model.vocab").
  BpeVocabulary(const nlohmann::json& vocab, std::string field, BpeDefinition& definition);
  // `left` and `right` are spelled as in the file. `where` identifies the line or entry in errors.
  void add_merge(std::string_view left, std::string_view right, const std::string& where);
  std::optional<int32_t> find(const std::string& token) const;  // `token`: in printable characters
  // Returns the token as spelled in the file, or "" for an unused id.
  std::string spelling(int32_t id) const;
  // Returns whether the vocabulary has a token for each of the 256 bytes.
  bool has_all_bytes() const;

 private:
  int32_t id_of(const std::string& token, const std::string& where) const;
  std::string field_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> spellings_;
  std::unordered_set<uint64_t> pairs_;
  BpeDefinition& definition_;
};

}  // namespace lazy
