// `lazy eval --lengths`: everything that is measured over lengths, for several models and variants of them, as one JSON
// value (docs/length.md describes it) from which tables and pictures are made.
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
#include "eval/length/probe.h"
#include "eval/length/scorer.h"
#include "model/config.h"

namespace lazy::eval::length {

using Json = nlohmann::ordered_json;

struct Opened {
  Scorer scorer;
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelConfig config;
  std::string device;
};

// A model in one of its variants. Opened when its turn comes and closed after it: one is in memory at a time.
struct Subject {
  std::string label, path, variant;  // variant: "rope-base=500000", empty for the model as it is
  std::function<Opened()> open;
};

struct StudyOptions {
  std::vector<int64_t> lengths;
  std::vector<std::string>
      tasks;  // heldout, wikitext, lambada_openai, passkey, recall; empty: what the given data serves
  std::filesystem::path data, corpus, text;
  std::string split = "validation";
  std::optional<double> limit;  // documents, or items; below 1 a share of them
  bool bos = false, per_document = false;
  int64_t stride = 0, resamples = 1000;
  ProbeOptions probe;  // its bos is set from `bos` and the tokenizer
  std::string command, date;
};

// Error, before any model is opened, on lengths that do not increase or are below 2, on unknown tasks, missing or
// broken data. A length that a task cannot serve (a text that is shorter) is left out with a warning; an Error when
// none is left.
Json run(const std::vector<Subject>& subjects, const StudyOptions& options);

// The same as text: a table a measure, a row a model.
std::string to_table(const Json& study);

}  // namespace lazy::eval::length
