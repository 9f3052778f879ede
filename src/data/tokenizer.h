// Tokenizers convert text to ids and back. SentencePiece models, byte-level BPE, words and plain bytes share one
// interface.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/token_table.h"

namespace lazy {

// The const member functions may be called concurrently. Ids are 0-based. encode() adds no special tokens (no BOS, no
// EOS); tokens() returns, among others, the ids that transformers adds before and after a text.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Returns encode() of each text. Tokenizers that run in another process encode all texts in one request.
  virtual std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts) const;
  // Returns a position at or after `at` at which `text` can be cut: the ids of the two parts, concatenated, equal the
  // ids of the whole text. Returns the size of `text` if no position is suitable. Long documents are encoded in such
  // parts, in parallel.
  virtual size_t cut(std::string_view text, size_t at) const { return text.size(); }
  // Returns the text of the ids, including the texts of special tokens ("</s>"). Throws Error for an id out of range.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // Returns the bytes that this id appends to a text, independent of the preceding text. For a special token this is
  // its text ("</s>").
  virtual std::string piece(int32_t id) const = 0;
  // Returns the bytes that this id appends to the text of `previous`, the ids directly before it. The result differs
  // from piece() for tokenizers whose decoder depends on adjacent tokens (WordPiece).
  virtual std::string next_piece(std::span<const int32_t> previous, int32_t id) const;
  // Returns whether encode() recognizes special tokens ("</s>") in a text. Otherwise it encodes them as ordinary
  // characters.
  virtual bool finds_special_tokens() const { return false; }
  virtual int64_t vocab_size() const = 0;
  // Returns the special and added tokens, BOS, EOS, and the ids that transformers adds before and after a text.
  const TokenTable& tokens() const { return table_; }
  std::optional<int32_t> bos_id() const { return table_.bos; }
  std::optional<int32_t> eos_id() const { return table_.eos; }
  bool is_special(int32_t id) const { return table_.is_special(id); }
  // Returns a hash that identifies the vocabulary. Shards and models store this hash, so that a mismatch of their
  // tokenizers can be reported as an error.
  virtual uint64_t fingerprint() const = 0;
  virtual std::string kind() const = 0;  // for example "sentencepiece", "bpe", "bytes" or "words"
  // Writes the files that load_tokenizer reads (tokenizer.model / tokenizer.json / tokenizer_config.json).
  virtual void save(const std::filesystem::path& directory) const = 0;

 protected:
  TokenTable table_;
};

// Returns the ids without special tokens, like decode(ids, skip_special_tokens=True) of transformers.
std::vector<int32_t> without_special_tokens(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// Loads a tokenizer. `source` is "bytes", a .model file, a tokenizer.json, a vocab.txt, or a folder. A folder must
// contain tokenizer.json or tokenizer.model, or vocab.json and merges.txt, or vocab.txt. If it contains both
// tokenizer.json and tokenizer.model, tokenizer.json is used, as in transformers; a warning is logged if the two files
// encode a probe text differently. If a tokenizer.json uses features that this program does not implement exactly,
// Hugging Face's `tokenizers` package runs it in a Python process. Errors contain the file, the field, the expected
// value and the value found.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source);

}  // namespace lazy
