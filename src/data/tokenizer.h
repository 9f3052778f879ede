// Tokenizers: text to ids and back. One interface for SentencePiece models, byte-level BPE, words and plain bytes.
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

// Thread-safe for concurrent const calls. Ids are 0-based. encode() adds no special tokens (no BOS, no EOS); tokens()
// says what transformers puts before and after a text.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // encode() of each text. Tokenizers that run in another process encode the texts in one request.
  virtual std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts) const;
  // A position at or after `at` where `text` can be cut: encode() of both parts gives the ids of the whole. The size of
  // `text` if there is none. Long documents are encoded in such parts, in parallel.
  virtual size_t cut(std::string_view text, size_t at) const { return text.size(); }
  // The text of the ids, with the texts of special tokens ("</s>"). Throws Error for an id out of range.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // Bytes that this id appends to a text, whatever precedes it. A special token's text ("</s>") for a special token.
  virtual std::string piece(int32_t id) const = 0;
  // Bytes that this id appends to the text of `previous`, the ids just before it. Differs from piece() for tokenizers
  // whose decoder looks at neighbours (WordPiece).
  virtual std::string next_piece(std::span<const int32_t> previous, int32_t id) const;
  // Whether encode() finds special tokens in a text ("</s>"). If not, it encodes them as letters.
  virtual bool finds_special_tokens() const { return false; }
  virtual int64_t vocab_size() const = 0;
  // Special and added tokens, BOS, EOS, and what transformers adds around a text.
  const TokenTable& tokens() const { return table_; }
  std::optional<int32_t> bos_id() const { return table_.bos; }
  std::optional<int32_t> eos_id() const { return table_.eos; }
  bool is_special(int32_t id) const { return table_.is_special(id); }
  // Identifies the vocabulary. Shards and models store it, so that a mismatch is an error.
  virtual uint64_t fingerprint() const = 0;
  virtual std::string kind() const = 0;  // "sentencepiece", "bpe", "bytes", "words"
  // Writes the files that load_tokenizer reads back (tokenizer.model / tokenizer.json / tokenizer_config.json).
  virtual void save(const std::filesystem::path& directory) const = 0;

 protected:
  TokenTable table_;
};

// The ids without those of special tokens, as for decode(ids, skip_special_tokens=True) of transformers.
std::vector<int32_t> without_special_tokens(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// `source`: "bytes"; a .model file; a tokenizer.json; a vocab.txt; or a folder with tokenizer.json or tokenizer.model,
// vocab.json and merges.txt, or vocab.txt. A folder with both of the first two is read as transformers reads it, from
// tokenizer.json; where tokenizer.model encodes a probe text differently, one warning names both. A tokenizer.json with
// anything that is not implemented here exactly is run by Hugging Face's `tokenizers` package in a Python process.
// Errors name the file, the field, what was expected and what was found.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source);

}  // namespace lazy
