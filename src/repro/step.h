// One piece of work of a recipe: trained once, measured once, recorded, and shared by all recipes that ask for the
// same.
#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "repro/scale.h"

namespace lazy::repro {

using Json = nlohmann::ordered_json;

enum class StepKind { train, heldout, sinks, tasks, lengths, learned, domain, latency, datasets, study };
const char* name(StepKind kind);

struct Step {
  std::string id;  // "lazy", "lazy.sinks", with ".seed2" for a further seed; unique in a plan
  StepKind kind;
  std::string model;  // id of the training that it measures; empty for training itself and for what needs no model
  Json settings;  // all that decides the outcome, but for data and model; of a training, "given": a folder in its place
  std::string needs;  // "", "data", "domain" or "model": without it the step is left out and the report says so
};

// What a recipe is run on.
struct Conditions {
  Scale scale;
  std::filesystem::path corpus, data;                    // empty: not given
  std::map<std::string, std::filesystem::path> domains;  // name -> folder of text
  int64_t seeds = 1;
  std::string device = "cpu";
  // Name, folder: what studies are about, or, by the name of a model of the plan, what takes its training's place.
  std::vector<std::pair<std::string, std::filesystem::path>> models = {};
  std::vector<std::string> text = {};  // files or folders that studies read
};

// A model of a comparison: which kind it starts from, and what differs.
struct Model {
  std::string name;  // "lazy", "no-elastic": names steps and rows
  std::string kind;  // "lazy", "transformer", or a mixer's
  std::vector<std::string> overrides;
  Budget budget = Budget::ablation;
  std::vector<std::string> files = {};  // configurations that it extends; empty: the scale's
};

// The models that several recipes share. Positions, in tokens, follow the scale.
Model lazy_model(const Scale& scale, Budget budget);       // tau from -1, distance bias, RoPE 1.5e5
Model softmax_model(Budget budget);                        // Transformer++: softmax, RoPE 1e4
Model softmax_twin(Budget budget);                         // the same at Lazy's RoPE base
Model without_positional(Budget budget);                   // Elastic-Softmax with plain RoPE
Model without_elastic(const Scale& scale, Budget budget);  // softmax with the distance bias
Model elastic_alone(Budget budget);                        // Transformer++ with Elastic-Softmax

// Builds a plan: `measure` adds the step for every seed of every model trained before. Sinks are measured where all
// layers attend.
class Plan {
 public:
  explicit Plan(const Conditions& conditions) : conditions_(conditions) {}
  Plan& train(const Model& model);
  Plan& measure(StepKind kind, const Json& more = Json::object());
  // A study (studies/study.h) of every given model that is no training of the plan, "NAME.STUDY"; of every model
  // trained before, the same.
  Plan& study(const std::string& study, const Json& settings);
  Plan& study_trained(const std::string& study, const Json& settings);
  Plan& study_of(const std::string& model, const std::string& study, const Json& settings);  // of one of them
  // Measures a model trained before once more, as `name`, through a streaming cache ("streaming:4+508").
  Plan& streaming(const std::string& name, const std::string& model, const std::string& cache,
                  const std::vector<StepKind>& kinds);
  Plan& once(StepKind kind, const std::string& id, const Json& settings, const std::string& needs = "");
  std::vector<Step> steps() const { return steps_; }

 private:
  Json settings(StepKind kind) const;  // that follow from the scale

  Conditions conditions_;
  std::vector<Step> steps_;
};

// The folder that takes a training's place; empty: it is trained.
std::filesystem::path given_folder(const Step& step);
// "lazy" for the first seed, "lazy.seed2" for the second.
std::string training_id(const std::string& model, int64_t seed);

}  // namespace lazy::repro
