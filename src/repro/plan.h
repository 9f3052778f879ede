// What a recipe runs: the scale, the models of a comparison, and the steps that train and measure them.
#pragma once
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lazy::repro {

// Training budgets: the paper trains its Table 1 models longer and at a longer context than its ablations.
enum class Budget { main, ablation, large };  // large: 760M for 30B tokens, at paper scale alone

// A scale of all recipes: tiny (minutes on two CPU cores), small (55M parameters on one GPU), paper (its own
// configurations).
struct Scale {
  std::string name;       // "tiny", "small", "paper"
  std::string means;      // one line for help texts and reports
  bool bos_per_sequence;  // training sequences begin with BOS
  int64_t heldout_sequences, sink_samples, length_blocks;
  int64_t length_stretch;  // tokens of a text that is read at several lengths; 0: the longest of them
  bool is_paper() const { return name == "paper"; }
  // Configurations of configs/ that a model extends; later ones override. kind: as in [model].
  std::vector<std::string> files(const std::string& kind, Budget budget) const;
  std::vector<std::string> overrides() const;  // of every model of its configurations
  // Overrides for attention models only: other mixers lack these keys.
  std::vector<std::string> attention_overrides() const;
};

const std::vector<Scale>& scales();
// Error suggests the nearest.
const Scale& find_scale(const std::string& name);

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

enum class StepKind { train, heldout, sinks, tasks, lengths, learned, domain, latency, datasets, experiment };
const char* name(StepKind kind);  // as recorded in files; experiment is "study" there

// One piece of work: trained or measured once, recorded, and shared by all recipes that contain it.
struct Step {
  std::string id;  // "lazy", "lazy.sinks", with ".seed2" for a further seed; unique in a plan
  StepKind kind;
  std::string model;  // id of the training step that it measures; empty for training steps and for steps without model
  Json settings;  // everything that decides the outcome except data and model; "given": a folder instead of training
  std::string needs;  // "", "data", "domain" or "model": the step is skipped without it, and the report says so
  // Ids of further steps that it needs: trainings that it measures, in the order of settings' "beside"; of a training
  // with "alternatives" the losses of their trials, in that order.
  std::vector<std::string> beside = {};
  std::string part_of = {};  // the id under which the values of a piece of a measurement stand; empty: its own
  int64_t seed = 1;          // of the training that it makes or measures
  bool trial = false;        // a short training that chooses among another's alternatives, or its loss
};

// The inputs of a recipe.
struct Conditions {
  Scale scale;
  std::filesystem::path corpus, data;                    // empty: not given
  std::map<std::string, std::filesystem::path> domains;  // name -> folder of text
  int64_t seeds = 1;
  std::string device = "cpu";
  // (name, folder): models for experiments; one with the name of a model in the plan replaces its training.
  std::vector<std::pair<std::string, std::filesystem::path>> models = {};
  std::vector<std::string> text = {};  // files or folders that experiments read
};

// A model of a comparison: a base configuration and its overrides.
struct Model {
  std::string name;  // "lazy", "no-elastic": names steps and rows
  std::string kind;  // "lazy", "transformer", or a mixer's
  std::vector<std::string> overrides;
  Budget budget = Budget::ablation;
  std::vector<std::string> files = {};  // configurations that it extends; empty: the scale's
  // Overrides of which the model is trained with the one whose trial has the lowest held-out loss, and what makes a
  // trial of a training. Trials have the first seed.
  std::vector<std::string> alternatives = {}, trial = {};
};

// Builds a plan. `measure` adds a step for every seed of every model trained so far, as "MODEL.KIND"; a `piece` of a
// measurement is a step of its own, "MODEL.KIND-PIECE", whose values stand with those of the other pieces. Sinks are
// measured for models with attention in every layer.
class Plan {
 public:
  explicit Plan(const Conditions& conditions) : conditions_(conditions) {}
  Plan& train(const Model& model);
  Plan& measure(StepKind kind, const Json& more = Json::object(), const std::string& piece = "");
  // An experiment (experiments/experiment.h) on every given model that is not trained by the plan, as
  // "NAME.EXPERIMENT"; on every model trained so far; on one of these.
  Plan& experiment(const std::string& experiment, const Json& settings);
  Plan& experiment_on_trained(const std::string& experiment, const Json& settings);
  // `beside`: models measured in the same step, each trained by the plan with the seed of `model`.
  Plan& experiment_on(const std::string& model, const std::string& experiment, const Json& settings,
                      const std::vector<std::string>& beside = {});
  // Measures a trained model again, as `name`, with a streaming cache ("streaming:4+508").
  Plan& streaming(const std::string& name, const std::string& model, const std::string& cache,
                  const std::vector<StepKind>& kinds, const Json& more = Json::object(), const std::string& piece = "");
  Plan& once(StepKind kind, const std::string& id, const Json& settings, const std::string& needs = "");
  std::vector<Step> steps() const { return steps_; }

 private:
  Json settings(StepKind kind) const;  // implied by the scale
  void measure_model(const std::string& name, const Step& training, StepKind kind, const Json& settings,
                     const std::string& piece = "");

  Conditions conditions_;
  std::vector<Step> steps_;
};

// Ids of the steps that a step needs: the training of its model, then those beside it.
std::vector<std::string> needed_steps(const Step& step);
// Ids of the trainings whose models a step measures.
std::vector<std::string> measured_models(const Step& step);
// The values of a step by its id; null: not measured.
using StepValues = std::function<const Json*(const std::string& id)>;
// The number of the alternative whose trial has the lowest mean held-out loss; a loss that is no number counts as
// infinite. None while the values of a trial (null) are missing, and for a step without alternatives.
std::optional<size_t> chosen_alternative(const Step& training, const StepValues& values);
// The training with the alternative that its trials chose among its overrides; unchanged where none is chosen.
Step with_choice(const Step& training, const StepValues& values);
// The folder given instead of a training; empty: the model is trained.
std::filesystem::path given_folder(const Step& step);
// "lazy" for the first seed, "lazy.seed2" for the second.
std::string training_id(const std::string& model, int64_t seed);

}  // namespace lazy::repro
