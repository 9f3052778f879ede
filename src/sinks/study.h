// `lazy sinks`: one model, one text, all measures, a few attention maps, as JSON and as a table.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "sinks/further.h"
#include "sinks/interventions.h"
#include "sinks/measures.h"
#include "sinks/source.h"
#include "sinks/weights.h"

namespace lazy::sinks {

struct StudyOptions {
  int64_t length = 0;        // tokens a sample; 0: the model's training length, or the whole text if that is shorter
  int64_t samples = 64;      // at most; fewer when the text is short
  bool bos = false;          // BOS first in every sample
  int64_t sink_length = 64;  // T of Sink_1^0.3 (SPEC section 4)
  int64_t sink_samples = 100;
  double threshold = 0.3;
  std::string maps = "auto";          // "auto", "all", "none", or "LAYER:HEAD,..." counted from 1
  std::string map_text;               // words of the maps; empty: the first paragraph of prose in the text
  int64_t map_tokens = 24;            // of the maps, at most 64
  std::vector<std::string> measures;  // further ones, of kFurtherMeasures
  Interventions interventions;        // what the model is under
  bool progress = true;
};

struct Map {
  int64_t layer, head;  // counted from 1
  std::vector<std::string> tokens;
  WeightRows weights;
};

struct Study {
  Measures measures;
  HeadMatrix sink_1;  // Sink_1^0.3 of each head
  int64_t length = 0, samples = 0, sink_length = 0, sink_samples = 0, text_tokens = 0;
  std::vector<Map> maps;
  FurtherMeasures further;  // as far as they were asked for
};

// Error when the source has fewer tokens than one sample needs, or `maps` names a head that is not there.
Study study(LanguageModel& model, const Tokenizer& tokenizer, const Source& source, const StudyOptions& options);

// The format of sinks.json (docs/report.md).
nlohmann::ordered_json to_json(const Study& study, const ModelConfig& config, const std::string& model,
                               const std::string& text, const StudyOptions& options, const std::string& command);
std::string to_table(const Study& study);

// Samples of `length` tokens spread evenly over `ids`, without overlap, at most `most`.
std::vector<std::vector<int64_t>> spread_samples(const std::vector<int32_t>& ids, int64_t length, int64_t most,
                                                 std::optional<int32_t> bos);
}  // namespace lazy::sinks
