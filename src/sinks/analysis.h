// Implements `lazy sinks`: all sink measures and a few attention maps for one model and one text, as JSON and as a
// table.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/torch_forward.h"
#include "sinks/attention_maps.h"
#include "sinks/interventions.h"
#include "sinks/measures.h"
#include "sinks/text_source.h"

namespace lazy {
class LanguageModel;
struct ModelConfig;
}  // namespace lazy

namespace lazy::sinks {

struct FurtherMeasures;  // defined in sinks/probe_measures.h

// Default for the maximum number of tokens per sample. It limits the time, which grows quadratically with the length:
// pretrained models have training lengths of up to 131072 tokens.
inline constexpr int64_t kDefaultLength = 2048;

struct AnalysisOptions {
  // Tokens per sample. 0: the minimum of kDefaultLength, the training length of the model and the length of the text.
  int64_t length = 0;
  int64_t samples = 64;  // maximum number of samples; smaller if the text is short
  bool bos = false;      // start every sample with BOS
  // Number of tokens per sample for Sink_1^0.3, the fraction of samples in which a head's mean weight on the first key
  // exceeds 0.3 (`threshold`).
  int64_t sink_length = 64;
  // Maximum number of samples for Sink_1^0.3 and for the measures "weights" and "vectors". If it is 0, Sink_1^0.3 is
  // not measured.
  int64_t sink_samples = 100;
  double threshold = 0.3;
  std::string maps = "auto";  // "auto", "all", "none", a list "LAYER:HEAD,..." of 0-based indices, or a sinks.json
  std::string map_text;       // text of the attention maps; empty: the first paragraph of prose in the source
  int64_t map_tokens = 24;    // number of tokens in the attention maps, at most 64
  std::vector<std::string> measures;  // additional measures from kFurtherMeasures
  Interventions interventions;        // applied to the model during all passes
  bool progress = true;
};

struct HeadMap {
  int64_t layer, head;  // 0-based
  std::vector<std::string> tokens;
  WeightRows weights;
};

struct Analysis {
  Measures measures;
  HeadMatrix sink_1;  // Sink_1^0.3 of each head; empty if sink_samples is 0
  int64_t length = 0, samples = 0, sink_length = 0, sink_samples = 0, text_tokens = 0;
  std::vector<HeadMap> maps;
  // results of the additional measures; not null in a result of analyze()
  std::shared_ptr<const FurtherMeasures> further;
};

// Throws Error if the source has fewer tokens than one sample needs or if `maps` names a head that does not exist.
Analysis analyze(LanguageModel& model, const Tokenizer& tokenizer, const TextSource& source,
                 const AnalysisOptions& options);

// Returns the content of sinks.json, whose format is described in docs/reference/report.md.
nlohmann::ordered_json to_json(const Analysis& analysis, const ModelConfig& config, const std::string& model,
                               const std::string& text, const AnalysisOptions& options, const std::string& command);
std::string to_table(const Analysis& analysis);

nlohmann::ordered_json to_json(const FurtherMeasures& further);
std::string to_table(const FurtherMeasures& further);  // returns "" if nothing was measured
// Converts a tensor to nested JSON lists.
nlohmann::ordered_json nested(const at::Tensor& tensor);

}  // namespace lazy::sinks
