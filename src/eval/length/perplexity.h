// Perplexity of a text over window lengths, by document and by position in the window. Every token is scored exactly
// once at every length, so that lengths differ only in the context of a token.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/score.h"
#include "model/config.h"

namespace lazy::eval::length {

// Documents before tokenization; a prepared corpus has ids instead of text.
struct TextSource {
  std::string name, path;  // "wikitext" or "heldout"; the file or folder
  std::vector<std::string> texts;
  std::vector<int64_t> words;  // of the original documents, before detokenization; empty: unknown
  std::vector<std::vector<int32_t>> ids;
  uint64_t tokenizer_fingerprint = 0;
  int64_t vocab_size = 0;
};

// `limit`: documents at most; below 1 a share of them.
TextSource wikitext_source(const std::filesystem::path& data, const std::optional<double>& limit);
TextSource file_source(const std::filesystem::path& text);  // one document
TextSource corpus_source(const std::filesystem::path& corpus, const std::string& split,
                         const std::optional<double>& limit);

struct TokenizedText {
  std::vector<std::vector<int32_t>> documents;
  std::vector<int64_t> words;  // of each document; empty: unknown
  int64_t tokens = 0;
};

// Error when a corpus was made with another tokenizer than the model's.
TokenizedText tokenize(const TextSource& source, const Tokenizer& tokenizer, const ModelConfig& config);

struct RollingOptions {
  // BOS before every document, and in place of the first token of every window. It is not scored.
  bool bos = false;
  bool per_document = false;  // windows end with their document; else the documents are concatenated
  int64_t stride = 0;         // tokens predicted a window after the first; 0: windows do not overlap
  int32_t first_context = 0;  // the token before the first one of the text
};

// Bins of tokens by their visible context: 1 token in bin 0, 2 in bin 1, 3-4 in bin 2, 5-8 in bin 3, ...
int position_bin(int64_t visible);
int64_t bin_first(int bin);  // 1, 2, 3, 5, 9, ...
int64_t bin_last(int bin);   // 1, 2, 4, 8, 16, ...

// Sums over the scored tokens of each unit. A unit is a document, or a block of a text that is one document.
struct RollingSums {
  std::vector<double> loss, tokens;                       // [unit]; nats
  std::vector<std::vector<double>> bin_loss, bin_tokens;  // [bin][unit]
  int64_t not_finite = 0;                                 // targets whose log-likelihood is NaN or infinite
};

// `block`: tokens of a unit in the stream of all documents; 0: the units are the documents.
RollingSums score_rolling(const Scorer& scorer, const TokenizedText& text, int64_t length, int64_t block,
                          const RollingOptions& options, const std::string& title);

}  // namespace lazy::eval::length
