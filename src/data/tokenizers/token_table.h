// The special and added tokens of a tokenizer: one table, merged from every file of a folder that may name them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizers/added_tokens.h"

namespace lazy {

struct TokenTable {
  std::vector<AddedToken> added;  // special and added tokens with their ids
  std::map<std::string, std::string>
      texts;  // "bos_token" -> "<s>", as chat templates see them; only those that are set
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> prefix, suffix;  // ids that transformers puts before and after a text (add_special_tokens=True)
  std::string tokenizer_class;          // without "Fast"; empty: not known

  bool is_special(int32_t id) const;

  std::vector<int32_t> special_ids;  // of the special tokens in `added`, sorted
  void index();                      // fills special_ids
};

// A tokenizer class of transformers: what holds for a folder that does not say otherwise.
struct TokenizerClass {
  const char* name;
  // Texts of the special tokens; null: the class has none.
  const char *bos, *eos, *unk, *pad, *mask;
  // For folders of vocab.json and merges.txt: the class's pre-tokenizer. An empty pattern is GPT-2's (ByteLevel with
  // use_regex), null says that the class has no such folders.
  const char* pattern;
  bool nfc;
  // BOS first and EOS last (RobertaProcessing).
  bool encloses;
};
// Null for a class that is not in the list. `name` without "Fast".
const TokenizerClass* find_tokenizer_class(std::string_view name);

// What the files of a folder say about special tokens, merged in the order of transformers 5: added_tokens_decoder of
// tokenizer_config.json; without it special_tokens_map.json counts more than tokenizer_config.json, and
// added_tokens.json is read. Then the defaults of the class. config.json names the class by its model_type, and BOS and
// EOS by id where nothing else does.
class SpecialTokens {
 public:
  SpecialTokens() = default;
  // Files that are missing are skipped. Throws Error naming file and field.
  explicit SpecialTokens(const std::filesystem::path& folder);
  // The class of a folder that names none.
  void set_default_class(const std::string& name) {
    if (class_.empty()) class_ = name;
  }

  const std::string& tokenizer_class() const { return class_; }
  bool has_config() const { return files_.contains("tokenizer_config.json"); }
  const std::map<std::string, std::string>& files() const { return files_; }  // name -> content, for save()
  // A boolean of tokenizer_config.json.
  std::optional<bool> flag(const std::string& key) const;

  // The table for a tokenizer whose own file lists `added`. `find`: the id of a text in the vocabulary. `text_of`: the
  // text of an id. `size`: the number of ids without added tokens. Throws Error for an id that two texts claim.
  TokenTable resolve(std::vector<AddedToken> added,
                     const std::function<std::optional<int32_t>(const std::string&)>& find,
                     const std::function<std::string(int32_t)>& text_of, int64_t size) const;

 private:
  struct Source;
  std::string class_, folder_;
  std::vector<std::pair<std::string, AddedToken>> named_;  // "bos_token" -> token
  std::vector<AddedToken> extra_;                          // additional_special_tokens and the like
  std::vector<AddedToken> added_;                          // with ids
  bool added_counts_ = false;                              // their flags count more than those of tokenizer.json
  std::map<std::string, bool> flags_;
  std::vector<std::string> unset_;  // keys that are null
  std::optional<int32_t> config_bos_, config_eos_;
  std::map<std::string, std::string> files_;
};

}  // namespace lazy
