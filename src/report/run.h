// The data that the report reads about one run: everything that a run stores according to
// docs/reference/run-directory.md.
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

// Sink measures as means over samples, layers, heads and queries. They are fractions in [0, 1], except that released
// mass is negative if a positive offset tau adds weight.
struct SinkMeasures {
  double density = 0, sink_ratio = 0, released_mass = 0, alive_fraction = 0;
  std::optional<double> sink_1;  // Sink_1^0.3, if it was measured
};

// Results of `lazy sinks --measures` (docs/guides/sinks.md); measures that were not requested are empty.
struct FurtherReport {
  using Rows = std::vector<std::vector<double>>;
  std::vector<double> sink_k;                                          // fractions for k = 1, 2, ...
  Rows entropy;                                                        // [layer][head], nats
  std::vector<std::pair<std::string, std::pair<Rows, Rows>>> vectors;  // place, norms and variances [layer][position]
  struct Massive {
    double per_sample, largest, median;
    int64_t position, dimension;  // of the largest activation, numbered from 0
  };
  std::vector<Massive> massive;                // before each layer and after the last layer
  std::vector<double> cosine, effective_rank;  // as `massive`, and after the last norm; means over samples
};

struct SinkReport {
  SinkMeasures overall;
  std::vector<std::vector<double>> density, sink_ratio, released_mass, alive_fraction,
      sink_1;  // [layer][head]; sink_1 may be empty
  std::vector<AttentionMap> maps;
  std::string text, command, normalizer;
  int64_t length = 0, samples = 0, sink_length = 0, sink_samples = 0;
  bool bos = false;
  FurtherReport further;
};

// Small learned parameters of attention. sinks::learned_parameters fills them, because this library cannot read
// weights.
struct LearnedParameters {
  std::vector<std::vector<double>> tau;                         // [layer][head]; empty if there is none
  std::vector<std::vector<std::vector<double>>> distance_bias;  // [layer][head][distance]; empty if there is none
  std::vector<std::vector<double>> alibi_slopes;                // [layer][head]; empty without ALiBi
  double tau_initial = -1;
};

struct Sample {
  std::string prompt, text;
};

using Curve2d = std::vector<std::pair<double, double>>;  // (tokens, value)

// One accuracy of a benchmark as a fraction, with its standard error (if known) and the score of random guessing.
struct Score {
  std::string task, metric;
  double value = 0;
  std::optional<double> error, chance;
};

struct RunData {
  std::filesystem::path folder;
  std::string name;
  std::string kind;                                           // "lazy", "softmax", another normalizer, or "" if unknown
  std::vector<std::pair<std::string, std::string>> facts;     // run.json, flattened, in file order
  std::vector<std::pair<std::string, std::string>> settings;  // config.toml, flattened
  std::string config_text;
  Curve2d train_loss, validation_loss, validation_bits;  // nats per token; bits per byte
  std::map<std::string, std::vector<Curve2d>> by_layer;  // "sink_ratio", ...: [layer], of attention/layer_NN/
  std::vector<std::pair<double, double>> pace;           // (step, time) of the last logged lines
  enum class State { unknown, running, stopped, finished } state = State::unknown;
  double total_steps = 0;              // planned number of training steps
  std::optional<double> seconds_left;  // only for a running run
  double tokens = 0, steps = 0, seconds = 0;
  double tokens_per_second = 0;  // of the fastest logged interval, which is least affected by other processes
  std::optional<double> heldout_loss, bits_per_byte, perplexity, word_perplexity;
  std::string heldout_source, eval_command;  // sources of loss and bits per byte
  std::vector<Score> scores;                 // in the order of eval.json
  std::optional<double> mean_score;          // mean of the accuracies that the paper averages
  std::map<int64_t, double> loss_by_length;  // length in tokens -> held-out loss in nats per token
  std::optional<SinkReport> sinks;
  LearnedParameters learned;
  std::vector<Sample> samples;
  std::vector<std::string> missing;  // one line for each missing part
};

// Reads the folder of a run. A missing file is listed in `missing`. A malformed file throws a lazy::Error that names
// the file and the line or field. A folder without any file of a run is an error. `learned` is left empty.
RunData load_run(const std::filesystem::path& folder);

// Reads eval.json: held-out losses, WikiText perplexity, accuracies.
void read_eval(const std::filesystem::path& path, RunData* run);
// Reads lengths.json (`lazy eval --lengths`): held-out losses of one model by length.
void read_lengths(const std::filesystem::path& path, RunData* run);
// Parses the content of a sinks.json; `file` is used in error messages.
SinkReport parse_sinks(const Json& json, const std::string& file);

// Returns "running, step 120 of 4000, 0:12:30 left" or "stopped at step 120 of 4000"; empty if the run is finished or
// its state is unknown.
std::string status_text(const RunData& run);

}  // namespace lazy::report
