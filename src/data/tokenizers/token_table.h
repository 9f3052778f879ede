// The special and added tokens of a tokenizer, merged from all files of a folder that may define them.
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
  // Maps each defined key to the text of its token, for example "bos_token" to "<s>". Chat templates use these texts.
  std::map<std::string, std::string> texts;
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> prefix, suffix;  // ids that transformers adds before and after a text (add_special_tokens=True)
  std::string tokenizer_class;          // class name without the suffix "Fast"; empty: unknown

  bool is_special(int32_t id) const;

  std::vector<int32_t> special_ids;  // sorted ids of the special tokens in `added`
  void index();                      // fills special_ids
};

// A tokenizer class of transformers: the defaults for a folder that does not specify other values.
struct TokenizerClass {
  const char* name;
  // Texts of the special tokens; null: the class does not define the token.
  const char *bos, *eos, *unk, *pad, *mask;
  // Pre-tokenizer pattern for folders with vocab.json and merges.txt. An empty pattern selects the pattern of GPT-2
  // (ByteLevel with use_regex). null: the class does not support such folders.
  const char* pattern;
  bool nfc;
  // whether BOS is added before and EOS after each text (RobertaProcessing)
  bool encloses;
};
// Returns null for a class that is not in the list. `name` must not contain the suffix "Fast".
const TokenizerClass* find_tokenizer_class(std::string_view name);

// The special tokens that the files of a folder define, merged in the order of transformers 5. added_tokens_decoder of
// tokenizer_config.json has priority. If it is missing, special_tokens_map.json takes precedence over
// tokenizer_config.json, and added_tokens.json is read. Then the defaults of the class apply. config.json determines
// the class by its model_type, and provides the ids of BOS and EOS if no other file does.
class SpecialTokens {
 public:
  SpecialTokens() = default;
  // Missing files are skipped. Errors contain the file and the field.
  explicit SpecialTokens(const std::filesystem::path& folder);
  // Sets the class of a folder that does not specify one.
  void set_default_class(const std::string& name) {
    if (class_.empty()) class_ = name;
  }

  const std::string& tokenizer_class() const { return class_; }
  bool has_config() const { return files_.contains("tokenizer_config.json"); }
  const std::map<std::string, std::string>& files() const { return files_; }  // maps file names to contents, for save()
  // Returns the value of a boolean key of tokenizer_config.json, or nullopt if the key is missing.
  std::optional<bool> flag(const std::string& key) const;

  // Returns the table for a tokenizer whose file lists the tokens `added`. find(text) returns the id of a text in the
  // vocabulary, and text_of(id) returns the text of an id. `size` is the number of ids without added tokens. Throws
  // Error if two texts have the same id.
  TokenTable resolve(std::vector<AddedToken> added,
                     const std::function<std::optional<int32_t>(const std::string&)>& find,
                     const std::function<std::string(int32_t)>& text_of, int64_t size) const;

 private:
  struct Source;
  std::string class_, folder_;
  std::vector<std::pair<std::string, AddedToken>> named_;  // keys and their tokens, for example "bos_token" and "<s>"
  std::vector<AddedToken> extra_;                          // additional_special_tokens and similar lists
  std::vector<AddedToken> added_;                          // tokens of added_tokens_decoder or added_tokens.json
  bool added_counts_ = false;                              // whether flags in added_ override flags in tokenizer.json
  std::map<std::string, bool> flags_;
  std::vector<std::string> unset_;  // keys whose value is null
  std::optional<int32_t> config_bos_, config_eos_;
  std::map<std::string, std::string> files_;
};

}  // namespace lazy
