// The text whose perplexity is followed over lengths: documents, the words they are counted in, and their tokens.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/config.h"

namespace lazy::eval::length {

// As read, before any tokenizer; a prepared corpus has ids in the place of text.
struct TextSource {
  std::string name, path;  // "wikitext", "heldout"; where it was read
  std::vector<std::string> texts;
  std::vector<int64_t> words;  // of the original documents, before any detokenizer; empty: unknown
  std::vector<std::vector<int32_t>> ids;
  uint64_t tokenizer_fingerprint = 0;
  int64_t vocab_size = 0;
};

// `limit`: documents at most; below 1 a share of them.
TextSource wikitext_source(const std::filesystem::path& data, const std::optional<double>& limit);
TextSource file_source(const std::filesystem::path& text);  // one document
TextSource corpus_source(const std::filesystem::path& corpus, const std::string& split,
                         const std::optional<double>& limit);

struct TextSet {
  std::vector<std::vector<int32_t>> documents;
  std::vector<int64_t> words;  // by document; empty: unknown
  int64_t tokens = 0;
};

// Error when a corpus was made by another tokenizer than the model's.
TextSet tokenize(const TextSource& source, const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace lazy::eval::length
