// The parts of Hugging Face's tokenizer.json that its two native forms share: byte-level BPE and SentencePiece-style
// BPE.
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

// A tokenizer.json has something that the native tokenizers do not compute exactly. Hugging Face's `tokenizers` package
// may: see library_tokenizer.h.
class NotNative : public Error {
 public:
  explicit NotNative(const std::string& what)
      : Error("tokenizer: " + what + " is not supported natively"), reason(what + " is not supported natively") {}
  std::string reason;  // the message without "tokenizer: "
};

struct TokenizerJson {
  explicit TokenizerJson(const std::filesystem::path& path);
  // A definition that was composed in memory, as from vocab.json and merges.txt. `path` names it in errors.
  TokenizerJson(const std::filesystem::path& path, nlohmann::json json) : path(path), json(std::move(json)) {}
  JsonField root() const { return {"tokenizer", json, path.string()}; }
  // BPE over characters with byte_fallback (Llama 2, Mistral), as opposed to byte-level BPE.
  bool is_sentencepiece() const;

  std::filesystem::path path;
  std::string text;
  nlohmann::json json;
};

// Throws NotNative naming the field and its value.
[[noreturn]] void not_native(const JsonField& field);
// Throws NotNative if the object has another key. Keys whose value is null or false are accepted.
void allow_keys(const JsonField& object, std::initializer_list<std::string_view> keys);

// The list `added_tokens`. Throws NotNative for a token with single_word if `native`.
std::vector<AddedToken> read_added_tokens(const JsonField& list, bool native = true);
// Throws NotNative for flags of the folder's tokens that AddedTokenMatcher does not implement exactly. `file` names
// them.
void check_native(const std::vector<AddedToken>& added, const std::string& file);
// A merge is "left right" or ["left", "right"].
std::pair<std::string, std::string> read_merge(const JsonField& entry);
// Sets prefix and suffix of the table: the special tokens that the field `post_processor` puts around one text. Returns
// false for a post-processor that is not known.
bool read_post_processor(const JsonField& node, TokenTable& table);

// `special`: of the folder. NotNative as above.
BpeDefinition read_byte_level(const TokenizerJson& file, const SpecialTokens& special);
std::unique_ptr<Tokenizer> make_sentencepiece_json(const TokenizerJson& file, const SpecialTokens& special);
// What save() writes for a tokenizer that was read from `file`: the file and the folder's other tokenizer files.
// Without a tokenizer_config.json, one that names the special tokens.
std::map<std::string, std::string> files_to_save(std::string tokenizer_json, const SpecialTokens& special,
                                                 const TokenTable& table);

}  // namespace lazy
