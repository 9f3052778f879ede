// Perplexity of a text for several window lengths, by document and by position in the window. Every token is scored
// exactly once at every length, so lengths differ only in the context of a token.
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

// Documents before tokenization. A prepared corpus has ids instead of text.
struct TextSource {
  std::string name, path;  // name: "wikitext" or "heldout"; path: file or folder
  std::vector<std::string> texts;
  std::vector<int64_t> words;  // number of words of each original document, before detokenization; empty: unknown
  std::vector<std::vector<int32_t>> ids;
  uint64_t tokenizer_fingerprint = 0;
  int64_t vocab_size = 0;
};

// Returns the WikiText pages in the folder `data`. `limit` is the maximum number of pages; values below 1 are a
// fraction.
TextSource wikitext_source(const std::filesystem::path& data, const std::optional<double>& limit);
TextSource file_source(const std::filesystem::path& text);  // the whole file is one document
TextSource corpus_source(const std::filesystem::path& corpus, const std::string& split,
                         const std::optional<double>& limit);

struct TokenizedText {
  std::vector<std::vector<int32_t>> documents;
  std::vector<int64_t> words;  // number of words of each document; empty: unknown
  int64_t tokens = 0;
};

// Throws Error if a corpus was prepared with a tokenizer that differs from the tokenizer of the model.
TokenizedText tokenize(const TextSource& source, const Tokenizer& tokenizer, const ModelConfig& config);

struct RollingOptions {
  // Whether BOS is inserted before every document and is the first token of every window. BOS is not scored.
  bool bos = false;
  bool per_document = false;  // true: windows end at the end of a document; false: documents are concatenated
  int64_t stride = 0;  // number of tokens that each window after the first one predicts; 0: windows do not overlap
  int32_t first_context = 0;  // the token before the first token of the text
};

// Returns the bin of a token that is predicted from `visible` context tokens: 1 is in bin 0, 2 in bin 1, 3-4 in bin 2,
// 5-8 in bin 3, ...
int position_bin(int64_t visible);
int64_t bin_first(int bin);  // minimum number of context tokens in a bin: 1, 2, 3, 5, 9, ...
int64_t bin_last(int bin);   // maximum number of context tokens in a bin: 1, 2, 4, 8, 16, ...

// Sums over the scored tokens of each unit. A unit is a document, or a block if the text is one document.
struct RollingSums {
  std::vector<double> loss, tokens;                       // indexed by [unit]; loss in nats
  std::vector<std::vector<double>> bin_loss, bin_tokens;  // sums for each bin of position_bin(), indexed by [bin][unit]
  int64_t not_finite = 0;                                 // number of targets whose log-likelihood is NaN or infinite
};

// Scores every token once in rolling windows of `length` tokens. `block`: number of tokens per unit in the concatenated
// documents; 0: each document is a unit.
RollingSums score_rolling(const Scorer& scorer, const TokenizedText& text, int64_t length, int64_t block,
                          const RollingOptions& options, const std::string& title);

}  // namespace lazy::eval::length
