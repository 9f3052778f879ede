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

namespace lazy {

// Thread-safe for concurrent const calls. Ids are 0-based; encode adds no special tokens (no BOS, no EOS).
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Ids out of range throw Error. Special tokens decode to nothing (SentencePiece control) or their text (BPE).
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // Bytes that this id appends to the text, for streaming output.
  virtual std::string piece(int32_t id) const = 0;
  // Whether encode() finds special tokens in a text ("</s>"). If not, it encodes them as letters.
  virtual bool finds_special_tokens() const { return false; }
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
  // Identifies the vocabulary. Shards and models store it, so that a mismatch is an error.
  virtual uint64_t fingerprint() const = 0;
  virtual std::string kind() const = 0;  // "sentencepiece", "bpe", "bytes", "words"
  // Writes the files that load_tokenizer reads back (tokenizer.model / tokenizer.json / tokenizer_config.json).
  virtual void save(const std::filesystem::path& directory) const = 0;
};

// `source`: "bytes"; a .model file; a tokenizer.json; a vocab.txt; or a folder with tokenizer.json or tokenizer.model,
// vocab.json and merges.txt, or vocab.txt. A folder with both of the first two is read as transformers reads it, from
// tokenizer.json; where tokenizer.model encodes a probe text differently, one warning names both. Errors name the file,
// the field, what was expected and what was found.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source);

}  // namespace lazy
