// Loss of one text in windows of a given length, by document and by position in the window. Every token of the text is
// scored exactly once at every length, so that lengths differ in the context that a token sees and in nothing else.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "eval/length/scorer.h"
#include "eval/length/text_set.h"

namespace lazy::eval::length {

struct RollingOptions {
  bool bos = false;  // BOS before every document and first in every window, in the place of the token there; not scored
  bool per_document = false;  // windows end with their document; else the documents are one stream
  int64_t stride = 0;         // tokens predicted a window after the first; 0: as many as fit (windows do not overlap)
  int32_t first_context = 0;  // what the first token of the text is predicted from
};

// Tokens that a target sees: 1 in bin 0, 2 in bin 1, 3-4 in bin 2, 5-8 in bin 3, ...
int position_bin(int64_t visible);
int64_t bin_first(int bin);  // 1, 2, 3, 5, 9, ...
int64_t bin_last(int bin);   // 1, 2, 4, 8, 16, ...

// Sums over the scored tokens of each unit; a unit is a document, or a block of a text that is one document.
struct RollingSums {
  std::vector<double> loss, tokens;                       // [unit]; nats
  std::vector<std::vector<double>> bin_loss, bin_tokens;  // [bin][unit]
  int64_t not_finite = 0;                                 // targets whose log-likelihood is NaN or infinite
};

// `block`: 0, the units are the documents; else blocks of that many tokens of the stream of all documents.
RollingSums score_rolling(const Scorer& scorer, const TextSet& text, int64_t length, int64_t block,
                          const RollingOptions& options, const std::string& title);

}  // namespace lazy::eval::length
