// What several measurements share: the loaded model, and text as one stream of tokens.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "repro/measure.h"

namespace lazy::repro {

struct Loaded {
  LanguageModel model;
  std::unique_ptr<Tokenizer> tokenizer;
};
Loaded load(const Subject& subject);

// The tokens of files, and of the texts below folders, without BOS: enough for any measure here.
std::vector<int32_t> text_tokens(const std::vector<std::string>& paths, const Tokenizer& tokenizer);

// The streaming cache that a step's settings name; none: everything is kept.
std::optional<StreamingCache> streaming_cache(const Json& settings);

// Mean loss of each stretch of `block` tokens, at most `most` stretches spread over the stream, every token predicted
// within a window of `length` tokens that begins with BOS where the vocabulary has one (else with the token before it).
std::vector<double> stream_losses(LanguageModel& model, const std::vector<int32_t>& ids, std::optional<int32_t> bos,
                                  int64_t block, int64_t length, int64_t most, const std::string& title);

// One mean a sample of each of the sink measures.
struct SampleMeasures {
  std::vector<double> sink_ratio, density, released_mass, alive_fraction;
  Json by_layer;
};
SampleMeasures sink_measures(LanguageModel& model, const std::vector<std::vector<int64_t>>& samples,
                             const std::string& title);

}  // namespace lazy::repro
