// What the report knows about one run: everything that docs/run-directory.md says a run leaves on disk.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/heat_map.h"
#include "report/json_file.h"

namespace lazy::report {

// Sink measures as means over samples, layers, heads and queries. Shares in [0, 1]; released mass is negative when a
// positive offset tau adds weight.
struct SinkMeasures {
  double density = 0, sink_ratio = 0, released_mass = 0, alive_fraction = 0, sink_1 = 0;
};

// What `lazy sinks --measures` adds (docs/sinks.md); measures that were not requested are empty.
struct FurtherReport {
  using Rows = std::vector<std::vector<double>>;
  std::vector<double> sink_k;                                          // shares, k = 1, 2, ...
  Rows entropy;                                                        // [layer][head], nats
  std::vector<std::pair<std::string, std::pair<Rows, Rows>>> vectors;  // place, norms and variances [layer][position]
  struct Massive {
    double per_sample, largest, median;
    int64_t position, dimension;  // of the largest, from 0
  };
  std::vector<Massive> massive;                // before each layer, after the last
  std::vector<double> cosine, effective_rank;  // the same places and after the last norm, means over samples
};

struct SinkReport {
  SinkMeasures overall;
  std::vector<std::vector<double>> density, sink_ratio, released_mass, alive_fraction, sink_1;  // [layer][head]
  std::vector<AttentionMap> maps;
  std::string text, command, normalizer;
  int64_t length = 0, samples = 0, sink_length = 0, sink_samples = 0;
  bool bos = false;
  FurtherReport further;
};

// Small learned parameters of attention. Filled by sinks::learned_parameters: this library cannot read model weights.
struct LearnedParameters {
  std::vector<std::vector<double>> tau;                         // [layer][head], empty: no offset
  std::vector<std::vector<std::vector<double>>> distance_bias;  // [layer][head][distance], empty: none
  std::vector<std::vector<double>> alibi_slopes;                // [layer][head], empty: no ALiBi
  double tau_initial = -1;
};

struct Sample {
  std::string prompt, text;
};

using Curve2d = std::vector<std::pair<double, double>>;  // (tokens, value)

// An accuracy of one benchmark, as a share; its standard error, where there is one, and what guessing scores.
struct Score {
  std::string task, metric;
  double value = 0;
  std::optional<double> error, chance;
};

struct RunData {
  std::filesystem::path folder;
  std::string name;
  std::string kind;                                           // "lazy", "softmax" or "" when nothing says so
  std::vector<std::pair<std::string, std::string>> facts;     // run.json, flattened, in its order
  std::vector<std::pair<std::string, std::string>> settings;  // config.toml, flattened
  std::string config_text;
  Curve2d train_loss, validation_loss, validation_bits;  // nats per token; bits per byte
  std::map<std::string, std::vector<Curve2d>> by_layer;  // "sink_ratio", ...: [layer], of attention/layer_NN/
  std::vector<std::pair<double, double>> pace;           // (step, time) of the last logged lines
  enum class State { unknown, running, stopped, finished } state = State::unknown;
  double total_steps = 0;              // to train
  std::optional<double> seconds_left;  // of a running run
  double tokens = 0, steps = 0, seconds = 0;
  double tokens_per_second = 0;  // of the fastest logged interval, which other processes have slowed least
  std::optional<double> heldout_loss, bits_per_byte, perplexity, word_perplexity;
  std::string heldout_source, eval_command;  // where loss and bits per byte come from
  std::vector<Score> scores;                 // in eval.json's order
  std::optional<double> mean_score;          // of the accuracies that the paper averages
  std::map<int64_t, double> loss_by_length;  // held-out text in pieces of so many tokens: nats per token
  std::optional<SinkReport> sinks;
  LearnedParameters learned;
  std::vector<Sample> samples;
  std::vector<std::string> missing;  // one line for each part that was left out
};

// Reads a run's folder. A missing file is noted in `missing`; a malformed one throws lazy::Error naming file, line or
// field. A folder without any file of a run is an error. `learned` is left empty.
RunData load_run(const std::filesystem::path& folder);

// eval.json: held-out losses, WikiText's perplexity, accuracies.
void read_eval(const std::filesystem::path& path, RunData* run);
// lengths.json (`lazy eval --lengths`): held-out losses of one model by length.
void read_lengths(const std::filesystem::path& path, RunData* run);
// The content of one sinks.json; `file` names it in errors.
SinkReport parse_sinks(const Json& json, const std::string& file);

// "running, step 120 of 4000, 0:12:30 left", "stopped at step 120 of 4000"; empty for a finished run and for one whose
// state is unknown.
std::string status_text(const RunData& run);

}  // namespace lazy::report
