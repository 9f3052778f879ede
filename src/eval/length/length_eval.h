// `lazy eval --lengths`: language modelling and retrieval tasks over context lengths, for several models and variants
// of them, as one JSON value (docs/length.md describes it) from which tables and reports are made.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "eval/length/synthetic.h"
#include "eval/score.h"
#include "model/config.h"
#include "model/model_options.h"

namespace lazy::eval::length {

using Json = nlohmann::ordered_json;

struct LoadedModel {
  Scorer scorer;
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelConfig config;
  std::string device;
};

// A model folder under one set of options. Variants are loaded one after the other; one is in memory at a time.
struct ModelVariant {
  std::string label, path, variant;  // variant: "rope-base=500000", empty for the model as it is
  std::function<LoadedModel()> load;
};

// `base` changed by the text of --variant: "rope-base=500000", "positions=yarn:4", "cache=streaming:4+508", or several
// of these separated by commas. An empty text changes nothing. Error names the text and what was expected.
ModelOptions parse_variant(const std::string& text, ModelOptions base = {});

struct LengthEvalOptions {
  std::vector<int64_t> lengths;  // tokens, increasing
  std::vector<std::string>
      tasks;  // heldout, wikitext, lambada_openai, passkey, recall; empty: as the given data allows
  std::filesystem::path data, corpus, text;
  std::string split = "validation";
  std::optional<double> limit;  // documents or items at most; below 1 a share of them
  bool bos = false, per_document = false;
  int64_t stride = 0, resamples = 1000;
  SyntheticOptions synthetic;  // its bos follows from `bos` and the tokenizer; its seed also draws the resamples
  std::string command, date;
};

// Error, before any model is loaded, on lengths below 2 or not increasing, unknown tasks, and missing or malformed
// data. A length that a task cannot have (the text is shorter) is skipped with a warning; Error when none is left.
Json evaluate_lengths(const std::vector<ModelVariant>& models, const LengthEvalOptions& options);

// The results as text: a table a measure, a row a length, a column a model.
std::string to_table(const Json& results);

}  // namespace lazy::eval::length
