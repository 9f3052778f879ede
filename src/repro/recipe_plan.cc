// Creates the plan of a recipe: converts the sections of a recipe file to the steps (trainings and measurements) that
// run at a given scale.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/known_names.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

StepKind find_kind(const std::string& text) {
  for (const StepKind kind : {StepKind::heldout, StepKind::sinks, StepKind::tasks, StepKind::lengths, StepKind::learned,
                              StepKind::domain, StepKind::latency, StepKind::datasets}) {
    if (text == name(kind)) return kind;
  }
  fail("repro", "unknown kind of step {}", text);
}

const ModelSpec& find_model(const RecipeFile& data, const std::string& name, const std::string& where) {
  for (const ModelSpec& m : data.own_models) {
    if (m.name == name) return m;
  }
  fail_unknown("config", where, name, names_of(data.own_models), "a model");
}

bool at_scale(const ModelSpec& spec, const Scale& scale) {
  return spec.scales.empty() || contains(spec.scales, scale.name);
}

Model model_of(const RecipeFile& data, const ModelSpec& spec, const Scale& scale, const Variables& variables,
               int depth = 0) {
  if (depth > 8) fail("config", "{}: `like` refers back to itself", spec.where);
  Model out;
  out.budget = find_budget(data.budget, spec.where);
  if (!spec.like.empty())
    out = model_of(data, find_model(data, spec.like, spec.where + " like"), scale, variables, depth + 1);
  out.name = fill(spec.name, variables, spec.where);
  if (!spec.kind.empty()) out.kind = spec.kind;
  if (!spec.budget.empty()) out.budget = find_budget(spec.budget, spec.where);
  const Words& of_all = spec.like.empty() ? data.at_scale.at(scale.name) : Words{};
  for (const Words* more : {&of_all, &spec.overrides, &spec.at_scale.at(scale.name)}) {
    for (const std::string& override : fill(*more, variables, spec.where)) out.overrides.push_back(override);
  }
  if (!spec.files.empty()) out.files = spec.files;
  if (const Words& files = spec.files_at.at(scale.name); !files.empty()) out.files = files;
  if (const Words& own = spec.alternatives_at.at(scale.name); !own.empty()) {
    out.alternatives = fill(own, variables, spec.where);
    out.trial = fill(spec.trial, variables, spec.where);
  }
  return out;
}

// Reads the "key=JSON" items in the order of the list, because the record of a step stores settings in this order.
Json settings_of(const StepSpec& spec, const Conditions& c, const Variables& variables) {
  Json out = Json::object();
  for (const Words* list : {&spec.settings, c.device == "cuda" ? &spec.settings_cuda : &spec.settings_cpu}) {
    for (const std::string& item : fill(*list, variables, spec.where)) {
      const size_t equals = item.find('=');
      const Json value = equals == std::string::npos
                             ? Json(Json::value_t::discarded)
                             : Json::parse(item.substr(equals + 1), nullptr, /*allow_exceptions=*/false);
      if (equals == 0 || value.is_discarded())
        fail("config", "{} settings: expected NAME=VALUE with a value in JSON, found '{}'", spec.where, item);
      out[item.substr(0, equals)] = value;
    }
  }
  return out;
}

void expect_trained(const Plan& plan, const std::string& model, const std::string& where) {
  Words names;
  for (const Step& step : plan.steps()) {
    if (step.kind == StepKind::train) names.push_back(step.id);
  }
  expect_known(where + " beside", model, names, "a model that the recipe trains");
}

void add_experiment(Plan& plan, const RecipeFile& data, const StepSpec& spec, const Conditions& c,
                    const Variables& variables) {
  const Json settings = settings_of(spec, c, variables);
  if (spec.of == "given") {
    // A recipe that trains models does not require models given by the user.
    if (data.models.empty() || !c.models.empty()) plan.experiment(spec.experiment, settings);
  } else if (spec.of == "seeds") {
    for (int64_t seed = 0; seed < std::max(spec.seeds, c.seeds); ++seed) {
      Variables with_seed = variables;
      with_seed["seed"] = std::to_string(seed);
      Json all{{"study", spec.experiment}};
      all.update(settings_of(spec, c, with_seed));
      plan.once(StepKind::experiment, fmt::format("{}.seed{}", fill(spec.id, variables, spec.where), seed), all);
    }
  } else if (spec.models.empty()) {
    plan.experiment_on_trained(spec.experiment, settings);
  } else {
    const Words beside = fill(spec.beside, variables, spec.where);
    for (const std::string& other : beside) expect_trained(plan, other, spec.where);
    for (const std::string& model : fill(spec.models, variables, spec.where))
      plan.experiment_on(model, spec.experiment, settings, beside);
  }
}

void add_step(Plan& plan, const RecipeFile& data, const StepSpec& spec, const Conditions& c,
              const Variables& variables) {
  if (spec.kind == "experiment") return add_experiment(plan, data, spec, c, variables);
  if (spec.kind == "streaming") {
    std::vector<StepKind> kinds;
    for (const std::string& kind : spec.kinds) kinds.push_back(find_kind(kind));
    plan.streaming(spec.name, spec.model, fill(spec.cache, variables, spec.where), kinds,
                   settings_of(spec, c, variables), fill(spec.piece, variables, spec.where));
    return;
  }
  const StepKind kind = find_kind(spec.kind);
  if (kind == StepKind::latency || kind == StepKind::datasets)
    plan.once(kind, spec.id.empty() ? spec.kind : spec.id, settings_of(spec, c, variables), spec.needs);
  else
    plan.measure(kind, settings_of(spec, c, variables), fill(spec.piece, variables, spec.where));
}

}  // namespace

Budget find_budget(const std::string& name, const std::string& where) {
  constexpr std::array<std::pair<const char*, Budget>, 3> all{
      {{"main", Budget::main}, {"ablation", Budget::ablation}, {"large", Budget::large}}};
  for (const auto& [word, budget] : all) {
    if (name == word) return budget;
  }
  fail("config", "{} budget: expected main, ablation or large, found '{}'", where, name);
}

std::vector<Step> plan_of(const RecipeFile& data, const Conditions& c) {
  Plan plan(c);
  const Variables variables = variables_of(data, c);
  for (const std::string& name : data.models) {
    const ModelSpec& spec = find_model(data, name, data.file + ": [recipe] models");
    if (!at_scale(spec, c.scale)) continue;
    for (const Variables& v : rounds(spec.loops, variables, c, spec.where))
      plan.train(model_of(data, spec, c.scale, v));
  }
  for (const StepSpec& spec : data.steps) {
    for (Variables v : rounds(spec.loops, variables, c, spec.where)) {
      if (spec.of == "seeds") v["seed"] = "0";
      add_step(plan, data, spec, c, v);
    }
  }
  return plan.steps();
}

}  // namespace lazy::repro
