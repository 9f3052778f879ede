// The work of a recipe: the scale (model and data size), the models of a comparison, and the steps that train and
// measure the models.
#pragma once
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lazy::measure {}

namespace lazy::repro {

using namespace measure;  // NOLINT: recipes call the measurements without qualification

// Training budgets: the paper trains the models of its Table 1 longer and at a longer context than its ablations.
enum class Budget { main, ablation, large };  // large: 760M for 30B tokens, only at paper scale

// A size of models and data that every recipe supports: tiny (minutes on two CPU cores), small (55M parameters on one
// GPU), paper (the configurations of the paper).
struct Scale {
  std::string name;       // "tiny", "small", "paper"
  std::string means;      // one-line description for help texts and reports
  bool bos_per_sequence;  // training sequences begin with BOS
  int64_t heldout_sequences, sink_samples, length_blocks;
  int64_t length_stretch;  // tokens per text in measurements by length; 0: the longest length
  bool is_paper() const { return name == "paper"; }
  // Returns the configurations of configs/ that a model extends; later ones override earlier ones. `kind` is the kind
  // of [model].
  std::vector<std::string> files(const std::string& kind, Budget budget) const;
  std::vector<std::string> overrides() const;  // overrides for every model of this scale
  // Overrides for attention models only; other mixers do not have these keys.
  std::vector<std::string> attention_overrides() const;
};

const std::vector<Scale>& scales();
// Throws an Error for an unknown name and suggests the nearest scale.
const Scale& find_scale(const std::string& name);

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

enum class StepKind { train, heldout, sinks, tasks, lengths, learned, domain, latency, datasets, experiment };
const char* name(StepKind kind);  // the name that files contain; the kind `experiment` is called "study" there

// One unit of work: the training of a model or one measurement of a model. Its result is recorded, and all recipes that
// contain the step share the result.
struct Step {
  std::string id;  // for example "lazy" or "lazy.sinks"; ".seed2" is appended for the second seed; unique in a plan
  StepKind kind;
  std::string model;  // id of the training whose model is measured; empty for trainings and for steps without a model
  // All inputs except data and model; the key "given" names a model folder that replaces the training.
  Json settings;
  std::string needs;  // "", "data", "domain" or "model": if this input is missing, the step is skipped and reported
  // Ids of additional required steps. For a measurement: the additional trainings that it measures, in the order of the
  // settings. For a training with "alternatives": the loss steps of its trials, in the same order.
  std::vector<std::string> beside = {};
  // The id under which the values of a piece of a measurement are stored; empty: the step's id.
  std::string part_of = {};
  int64_t seed = 1;    // seed of the training that the step runs or measures
  bool trial = false;  // true for a short training that selects among alternatives, and for its loss step
};

// The inputs of a recipe.
struct Conditions {
  Scale scale;
  std::filesystem::path corpus, data;                    // empty: not given
  std::map<std::string, std::filesystem::path> domains;  // maps domain names to folders of text
  int64_t seeds = 1;
  std::string device = "cpu";
  // (name, folder) of models for experiments. A folder with the name of a model in the plan replaces the training of
  // this model.
  std::vector<std::pair<std::string, std::filesystem::path>> models = {};
  std::vector<std::string> text = {};  // files or folders that experiments read
};

// A model of a comparison: a base configuration and overrides.
struct Model {
  std::string name;  // for example "lazy" or "no-elastic"; used in the names of steps and rows
  std::string kind;  // "lazy", "transformer", or the name of a mixer
  std::vector<std::string> overrides;
  Budget budget = Budget::ablation;
  std::vector<std::string> files = {};  // base configurations; if empty, the scale defines them
  // `alternatives`: candidate overrides. A short trial training is run for each, and the model is trained with the
  // candidate whose trial has the lowest held-out loss. `trial`: overrides that shorten a training to a trial. Trials
  // use the first seed.
  std::vector<std::string> alternatives = {}, trial = {};
};

// Builds a plan. `measure` adds a step "MODEL.KIND" for every seed of every model that the plan trains up to this call.
// A measurement can be split into pieces: a piece is a separate step "MODEL.KIND-PIECE" whose values are merged with
// the values of the other pieces. Attention sinks are only measured for models with attention in every layer.
class Plan {
 public:
  explicit Plan(const Conditions& conditions) : conditions_(conditions) {}
  Plan& train(const Model& model);
  Plan& measure(StepKind kind, const Json& more = Json::object(), const std::string& piece = "");
  // These functions add an experiment (measure/experiment.h) as "NAME.EXPERIMENT": on every given model that the
  // plan does not train, on every model trained up to this call, or on one named model.
  Plan& experiment(const std::string& experiment, const Json& settings);
  Plan& experiment_on_trained(const std::string& experiment, const Json& settings);
  // Comparison models may be measured in the same step. The plan trains each comparison model with the seed of `model`.
  Plan& experiment_on(const std::string& model, const std::string& experiment, const Json& settings,
                      const std::vector<std::string>& beside = {});
  // Measures a trained model again under the id `name`, with a streaming cache such as "streaming:4+508".
  Plan& streaming(const std::string& name, const std::string& model, const std::string& cache,
                  const std::vector<StepKind>& kinds, const Json& more = Json::object(), const std::string& piece = "");
  Plan& once(StepKind kind, const std::string& id, const Json& settings, const std::string& needs = "");
  std::vector<Step> steps() const { return steps_; }

 private:
  Json settings(StepKind kind) const;  // settings that the scale implies
  void measure_model(const std::string& name, const Step& training, StepKind kind, const Json& settings,
                     const std::string& piece = "");

  Conditions conditions_;
  std::vector<Step> steps_;
};

// Returns the ids of the steps that a step requires: first the training of its model, then the additional steps.
std::vector<std::string> needed_steps(const Step& step);
// Returns the ids of the trainings whose models a step measures.
std::vector<std::string> measured_models(const Step& step);
// Returns the values of a step by its id, or null if the step was not measured.
using StepValues = std::function<const Json*(const std::string& id)>;
// Returns the index of the alternative whose trial has the lowest mean held-out loss; a loss that is not a number is
// treated as infinite. Returns nullopt while the values of a trial are missing (null), and for a step without
// alternatives.
std::optional<size_t> chosen_alternative(const Step& training, const StepValues& values);
// Returns the training with the overrides of the alternative that its trials selected. If no alternative is selected,
// the training is unchanged.
Step with_choice(const Step& training, const StepValues& values);
// Returns the model folder that replaces a training; empty if the model is trained.
std::filesystem::path given_folder(const Step& step);
// Returns "lazy" for the first seed of the model "lazy", "lazy.seed2" for the second seed.
std::string training_id(const std::string& model, int64_t seed);

}  // namespace lazy::repro
