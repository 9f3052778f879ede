// `lazy eval --lengths`: language modeling and retrieval tasks over several context lengths, for several models and
// model variants. The result is one JSON value (described in docs/guides/length.md) from which tables and reports are
// generated.
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

// A model folder with one set of options. Variants are loaded in succession, so that only one of them is in memory.
struct ModelVariant {
  std::string label, path, variant;  // variant: for example "rope-base=500000", or empty for the unmodified model
  std::function<LoadedModel()> load;
};

// Applies the text of --variant to `base`: "rope-base=500000", "positions=yarn:4", "cache=streaming:4+508", or several
// of these separated by commas. An empty text changes nothing. Errors contain the text and the expected syntax.
ModelOptions parse_variant(const std::string& text, ModelOptions base = {});

struct LengthEvalOptions {
  std::vector<int64_t> lengths;  // context lengths in tokens, in increasing order
  std::vector<std::string>
      tasks;  // heldout, wikitext, lambada_openai, passkey, recall; empty: every task whose data is given
  std::filesystem::path data, corpus, text;
  std::string split = "validation";
  // Maximum number of documents or LAMBADA items. Values below 1 are a fraction of all documents or items. A text file
  // is one document.
  std::optional<double> limit;
  bool bos = false, per_document = false;
  int64_t stride = 0, resamples = 1000;
  SyntheticOptions synthetic;  // the caller sets everything except BOS; the seed is also used for the bootstrap
  std::string command, date;
  // Called after each length of each task and model with all results so far, in which the key "unfinished" is true.
  std::function<void(const Json&)> on_length = {};
};

// Evaluates all variants. Before any model is loaded, throws Error for lengths below 2 or not increasing, for unknown
// tasks and for missing or malformed data. A length that a task does not support, for example because the text is
// shorter, is skipped with a warning. Throws Error if all lengths are skipped.
Json evaluate_lengths(const std::vector<ModelVariant>& models, const LengthEvalOptions& options);

// Formats the results as text: one table per measured quantity, with one row per length and one column per model. The
// results may be unfinished.
std::string to_table(const Json& results);

}  // namespace lazy::eval::length
