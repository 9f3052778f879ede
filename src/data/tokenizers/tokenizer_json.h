// Reads those parts of Hugging Face's tokenizer.json that the two native (C++) tokenizers share: byte-level BPE and
// SentencePiece-style BPE.
#pragma once
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json_field.h"
#include "data/tokenizers/bpe.h"

namespace lazy {

// Thrown if a tokenizer.json uses a feature that the native tokenizers do not compute exactly. Hugging Face's
// `tokenizers` package may support it; see library_tokenizer.h.
class NotNative : public Error {
 public:
  explicit NotNative(const std::string& what)
      : Error("tokenizer: " + what + " is not supported natively"), reason(what + " is not supported natively") {}
  std::string reason;  // the message without "tokenizer: "
};

struct TokenizerJson {
  explicit TokenizerJson(const std::filesystem::path& path);
  // A definition that was built in memory, for example from vocab.json and merges.txt. `path` identifies it in errors.
  TokenizerJson(const std::filesystem::path& path, nlohmann::json json) : path(path), json(std::move(json)) {}
  JsonField root() const { return {"tokenizer", json, path.string()}; }
  // Returns true for BPE over characters with byte_fallback (Llama 2, Mistral) and false for byte-level BPE.
  bool is_sentencepiece() const;

  std::filesystem::path path;
  std::string text;
  nlohmann::json json;
};

// Throws NotNative with the name and the value of the field.
[[noreturn]] void not_native(const JsonField& field);
// Throws NotNative if the object has a key that is not in `keys`, unless the value of this key is null or false.
void allow_keys(const JsonField& object, std::initializer_list<std::string_view> keys);

// Reads the list `added_tokens`. If `native` is set, throws NotNative for a token with single_word.
std::vector<AddedToken> read_added_tokens(const JsonField& list, bool native = true);
// Throws NotNative for token flags that AddedTokenMatcher does not implement exactly. `file` identifies the file in the
// message.
void check_native(const std::vector<AddedToken>& added, const std::string& file);
// Reads a merge, which is either "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const JsonField& entry);
// Sets prefix and suffix of the table to the special tokens that the field `post_processor` adds around a text. Returns
// false for an unknown post-processor.
bool read_post_processor(const JsonField& node, TokenTable& table);

// These functions read the two native kinds of tokenizers. `special` contains the special tokens of the folder. Both
// functions throw NotNative for unsupported features.
BpeDefinition read_byte_level(const TokenizerJson& file, const SpecialTokens& special);
std::unique_ptr<Tokenizer> make_sentencepiece_json(const TokenizerJson& file, const SpecialTokens& special);
// Returns the files that save() writes for a tokenizer that was read from `file`: the file and the other tokenizer
// files of the folder. If tokenizer_config.json is missing, one is created that names the special tokens.
std::map<std::string, std::string> files_to_save(std::string tokenizer_json, const SpecialTokens& special,
                                                 const TokenTable& table);

}  // namespace lazy
