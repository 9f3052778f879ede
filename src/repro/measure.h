// The measurements of steps, each made by the library that owns it: a model folder and text in, numbers out as JSON. A
// list holds one number for each text, so that models are compared text by text.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "eval/requests.h"
#include "eval/score.h"
#include "model/language_model.h"
#include "model/streaming_cache.h"
#include "repro/plan.h"

namespace lazy::repro {

struct MeasureInputs {
  std::filesystem::path model, corpus, data, domain;
  std::string device = "cpu";
  bool progress = true;
  SequenceOptions sequences = {};  // of held-out text: as in the model's training; their length is the model's
};

// {"loss": [...]}: held-out sequences of the corpus, made as those of the training, nats a token; with the streaming
// cache that settings' "cache" names, if any.
Json measure_heldout(const MeasureInputs& inputs, const Json& settings);
// {"sink_ratio": [...], "density": [...], "released_mass": [...], "alive_fraction": [...], "sink_1": [...], "excess":
// [...], "by_layer"}: held-out samples. sink_1: share of heads with Sink_1^0.3; excess: the sink ratio above that of
// uniform rows (sinks/uniform.h), not with sliding windows or segments.
Json measure_sinks(const MeasureInputs& inputs, const Json& settings);
// {task: {metric: {"value", "stderr"}}} of every task of lazy eval whose file is in the data folder, or of the one that
// settings' "task" names; "cache" as above. With "bos_every_window" a task's name ends in "-bos".
Json measure_tasks(const MeasureInputs& inputs, const Json& settings);
// From the result of measure_tasks: the mean of the tasks' headline accuracies (eval::Task::headline), and their
// number.
std::optional<std::pair<double, int>> mean_accuracy(const Json& tasks);
// {text: {length: [...]}, "collapse": {length: {"cosine": [...], "effective_rank": [...]}}} of settings' "lengths", on
// "blocks" stretches of the longest one, or of "stretch" tokens; held-out text with the separators of the training. A
// list has at most kLengthGroups numbers.
Json measure_lengths(const MeasureInputs& inputs, const Json& settings);
// {"tau": [layer][head], "distance_bias": [layer][head][distance], "alibi_slopes": [layer][head]}.
Json measure_learned(const MeasureInputs& inputs);
// {"loss": [...], "sink_ratio": [...]} of a folder of text.
Json measure_domain(const MeasureInputs& inputs, const Json& settings);
// {set: {"samples", "files"}} of the benchmark files in a data folder.
Json count_datasets(const std::filesystem::path& data);

// Shared by measurements, experiments and evidence.

// Sequences of the validation split, made as `how` says but in the corpus's order: at most `most`, spread over it. A
// window scores all tokens of one but the first. Error without a sequence, or on another tokenizer than the model's.
struct HeldOutWindows {
  std::vector<eval::Window> windows;
  bool whole_split = false;
  double bytes_per_token = 0;  // of the split
};
HeldOutWindows heldout_windows(const ModelConfig& model, const std::filesystem::path& corpus, SequenceOptions how,
                               int64_t most);

struct LoadedModel {
  LanguageModel model;
  std::unique_ptr<Tokenizer> tokenizer;
};
LoadedModel load(const MeasureInputs& inputs);

// The tokens of files and of the text files in folders, without BOS, up to a limit that is enough for every measure.
std::vector<int32_t> text_tokens(const std::vector<std::string>& paths, const Tokenizer& tokenizer);

// The streaming cache that a step's settings name; none: the whole cache is kept.
std::optional<StreamingCache> streaming_cache(const Json& settings);

// Stretches of text, each with the token before it: at most `most`, spread evenly; none where the text is shorter.
using Stretches = std::vector<std::vector<int64_t>>;
Stretches stretches_of(const std::vector<int32_t>& ids, int64_t tokens, int64_t most);
// Of the validation split, in the corpus's order, with the separators of `how`.
Stretches heldout_stretches(const std::filesystem::path& corpus, SequenceOptions how, int64_t tokens, int64_t most);
// Every token of the stretches within a window of `length` tokens that begins with `bos`, or, without, with the
// preceding token.
std::vector<eval::Window> length_windows(const Stretches& stretches, int64_t length, std::optional<int32_t> bos);
// The mean loss of each stretch from the scores of these windows; and predicted so.
std::vector<double> stretch_losses(const Stretches& stretches, const std::vector<eval::Score>& scores);
std::vector<double> stretch_losses(LanguageModel& model, const Stretches& stretches, int64_t length,
                                   std::optional<int32_t> bos, const std::string& title);

constexpr size_t kLengthGroups = 64;
// Means of at most `most` groups of neighbours of equal size within one.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace lazy::repro
