// What both forms of byte-level BPE files share: a token table, merges by name, BOS and EOS.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/tokenizers/bpe.h"

namespace lazy {

class BpeVocabulary {
 public:
  // `vocab`: {"token in printable characters": id}. `field` names it in errors ("vocab.json", "tokenizer.json:
  // model.vocab").
  BpeVocabulary(const nlohmann::json& vocab, std::string field, BpeDefinition& definition);
  // "left" and "right" as they stand in the file; `where` names the line or entry.
  void add_merge(std::string_view left, std::string_view right, const std::string& where);
  std::optional<int32_t> find(const std::string& token) const;  // by its printable characters

 private:
  int32_t id_of(const std::string& token, const std::string& where) const;
  std::string field_;
  std::unordered_map<std::string, int32_t> ids_;
  BpeDefinition& definition_;
};

// Fills bos and eos, and takes tokenizer_config.json along for save().
void read_special_tokens(const std::filesystem::path& folder, const std::string& default_class,
                         BpeDefinition& definition);

}  // namespace lazy
