#include "repro/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/known_names.h"
#include "model/mixers/registry.h"

namespace lazy::repro {

namespace {

// Converts the name of a mixer to the name used in file names, for example "gated_delta_net" to "gated-deltanet".
std::string file_name(const std::string& kind) {
  if (kind == "delta_net") return "deltanet";
  if (kind == "gated_delta_net") return "gated-deltanet";
  std::string name = kind;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

std::vector<std::string> Scale::files(const std::string& kind, Budget budget) const {
  if (name == "tiny") return {"repro-tiny.toml"};
  if (name == "small") return {"sink-55m.toml"};
  const std::string model = "models/" + file_name(kind);
  if (budget == Budget::large) return {model + "-760m.toml", "recipes/30b.toml"};
  return {model + "-340m.toml", budget == Budget::main ? "recipes/15b.toml" : "recipes/10b-512.toml"};
}

// The scale "small" uses the training settings of the evidence protocol, so that recipes can use its records
// (evidence/steps.h).
std::vector<std::string> Scale::overrides() const {
  return name == "small" ? std::vector<std::string>{"optimizer.lr=3e-3"} : std::vector<std::string>{};
}

std::vector<std::string> Scale::attention_overrides() const {
  if (is_paper()) return {};
  if (name == "tiny") return {"model.num_heads=4"};
  return {"model.num_heads=8", "model.distance_bias_init_apart=true"};
}

const std::vector<Scale>& scales() {
  static const std::vector<Scale> all{
      {"tiny", "4 layers of 128, context 256, 0.5M tokens per model: minutes on two CPU cores", true, 192, 64, 32, 0},
      {"small", "55M parameters, context 512, 200M tokens per model: minutes on one GPU", true, 16384, 512, 256, 4096},
      {"paper", "340M parameters and 15B tokens (760M: 30B); ablations: 10B tokens at context 512", false, 2048, 256,
       128, 0}};
  return all;
}

const Scale& find_scale(const std::string& name) {
  for (const Scale& scale : scales()) {
    if (scale.name == name) return scale;
  }
  fail("repro", "--scale: expected tiny, small or paper, found '{}'{}", name, did_you_mean(name, names_of(scales())));
}

const char* name(StepKind kind) {
  constexpr const char* names[] = {"train",   "heldout", "sinks",   "tasks",    "lengths",
                                   "learned", "domain",  "latency", "datasets", "study"};
  return names[static_cast<size_t>(kind)];
}

std::string training_id(const std::string& model, int64_t seed) {
  return seed == 1 ? model : fmt::format("{}.seed{}", model, seed);
}

namespace {

// Whether the model of a training has attention in every layer.
bool attends(const Step& training) {
  for (const Json& override : training.settings.at("overrides")) {
    for (const MixerKind* kind : mixer_kinds()) {
      if (override.get<std::string>() == fmt::format("model.kind=\"{}\"", name(kind->type))) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> measured_models(const Step& step) {
  return step.kind == StepKind::train ? std::vector<std::string>{} : needed_steps(step);
}

std::vector<std::string> needed_steps(const Step& step) {
  std::vector<std::string> out;
  if (!step.model.empty()) out.push_back(step.model);
  out.insert(out.end(), step.beside.begin(), step.beside.end());
  return out;
}

std::filesystem::path given_folder(const Step& step) {
  return step.kind == StepKind::train ? step.settings.value("given", std::string()) : std::string();
}

std::optional<size_t> chosen_alternative(const Step& training, const StepValues& values) {
  if (!training.settings.contains("alternatives")) return std::nullopt;
  std::vector<double> losses;
  for (const std::string& id : training.beside) {
    const Json* found = values(id);
    if (!found) return std::nullopt;
    double sum = 0;
    for (const Json& loss : found->at("loss")) sum += loss.is_number() ? loss.get<double>() : INFINITY;
    losses.push_back(std::isfinite(sum) ? sum / static_cast<double>(found->at("loss").size()) : INFINITY);
  }
  return static_cast<size_t>(std::min_element(losses.begin(), losses.end()) - losses.begin());
}

Step with_choice(const Step& training, const StepValues& values) {
  Step out = training;
  if (const auto chosen = chosen_alternative(training, values)) {
    out.settings["overrides"].push_back(training.settings.at("alternatives").at(*chosen));
    out.settings.erase("alternatives");
  }
  return out;
}

Plan& Plan::train(const Model& model) {
  std::vector<std::string> trials;
  for (int64_t seed = 1; seed <= conditions_.seeds; ++seed) {
    std::vector<std::string> overrides{fmt::format("model.kind=\"{}\"", model.kind)};
    if (model.files.empty()) {
      for (std::string& more : conditions_.scale.overrides()) overrides.push_back(std::move(more));
    }
    if (!find_mixer(model.kind) && model.files.empty()) {
      for (std::string& more : conditions_.scale.attention_overrides()) overrides.push_back(std::move(more));
    }
    overrides.insert(overrides.end(), model.overrides.begin(), model.overrides.end());
    if (seed > 1) overrides.push_back(fmt::format("training.seed={}", 41 + seed));
    Json settings{{"extends", model.files.empty() ? conditions_.scale.files(model.kind, model.budget) : model.files},
                  {"overrides", overrides}};
    for (const auto& [name, folder] : conditions_.models) {
      if (name != model.name) continue;
      if (conditions_.seeds > 1)
        fail("repro", "--model {}={}: replaces a single training and needs --seeds 1, found {}", name, folder.string(),
             conditions_.seeds);
      settings["given"] = std::filesystem::absolute(folder).string();
    }
    const bool chosen = !model.alternatives.empty() && !settings.contains("given");
    for (size_t n = 0; chosen && seed == 1 && n < model.alternatives.size(); ++n) {
      Step trial{fmt::format("{}.trial{}", model.name, n + 1), StepKind::train, "", settings, ""};
      trial.trial = true;
      for (const std::string& more : model.trial) trial.settings["overrides"].push_back(more);
      trial.settings["overrides"].push_back(model.alternatives[n]);
      steps_.push_back(trial);
      measure_model(trial.id, trial, StepKind::heldout, this->settings(StepKind::heldout));
      trials.push_back(steps_.back().id);
    }
    Step step{training_id(model.name, seed), StepKind::train, "", settings, ""};
    step.seed = seed;
    if (chosen) step.settings["alternatives"] = model.alternatives, step.beside = trials;
    steps_.push_back(std::move(step));
  }
  return *this;
}

void Plan::measure_model(const std::string& name, const Step& training, StepKind kind, const Json& settings,
                         const std::string& piece) {
  Step step{fmt::format("{}.{}", name, repro::name(kind)), kind, training.id, settings,
            kind == StepKind::tasks ? "data" : ""};
  step.seed = training.seed;
  step.trial = training.trial;
  if (!piece.empty()) {
    step.part_of = step.id;
    step.id += "-" + piece;
  }
  steps_.push_back(std::move(step));
}

Json Plan::settings(StepKind kind) const {
  const Scale& scale = conditions_.scale;
  Json settings = Json::object();
  if (kind == StepKind::heldout) settings = {{"sequences", scale.heldout_sequences}, {"separators", "as trained"}};
  if (kind == StepKind::sinks) settings = {{"samples", scale.sink_samples}, {"bos", scale.bos_per_sequence}};
  if (kind == StepKind::lengths || kind == StepKind::domain) settings = {{"blocks", scale.length_blocks}};
  if (kind == StepKind::lengths) {
    settings["separators"] = "as trained";
    if (scale.length_stretch > 0) settings["stretch"] = scale.length_stretch;
  }
  return settings;
}

Plan& Plan::measure(StepKind kind, const Json& more, const std::string& piece) {
  Json settings = this->settings(kind);
  settings.update(more);
  const std::vector<Step> before = steps_;
  for (const Step& step : before) {
    if (step.kind != StepKind::train || step.trial || (kind == StepKind::sinks && !attends(step))) continue;
    if (kind == StepKind::domain) {
      for (const auto& [domain, folder] : conditions_.domains) {
        Json of_domain = settings;
        of_domain["domain"] = domain;
        steps_.push_back({fmt::format("{}.domain-{}", step.id, domain), kind, step.id, of_domain, "domain"});
        steps_.back().seed = step.seed;
      }
    } else {
      measure_model(step.id, step, kind, settings, piece);
    }
  }
  return *this;
}

Plan& Plan::experiment(const std::string& experiment, const Json& settings) {
  auto models = conditions_.models;
  if (models.empty()) models.emplace_back("model", "");
  for (const auto& [name, folder] : models) {
    if (std::any_of(steps_.begin(), steps_.end(), [&name = name](const Step& s) { return s.id == name; })) continue;
    Json all{{"study", experiment},
             {"model", folder.empty() ? "" : std::filesystem::absolute(folder).string()},
             {"text", conditions_.text}};
    if (conditions_.text.empty() && !conditions_.corpus.empty())
      all["corpus"] = std::filesystem::absolute(conditions_.corpus).string();
    all.update(settings);
    steps_.push_back({fmt::format("{}.{}", name, experiment), StepKind::experiment, "", all, "model"});
  }
  return *this;
}

Plan& Plan::experiment_on_trained(const std::string& experiment, const Json& settings) {
  const std::vector<Step> before = steps_;
  for (const Step& step : before) {
    if (step.kind != StepKind::train || step.trial) continue;
    Json all{{"study", experiment}};
    all.update(settings);
    steps_.push_back({fmt::format("{}.{}", step.id, experiment), StepKind::experiment, step.id, all, ""});
    steps_.back().seed = step.seed;
  }
  return *this;
}

Plan& Plan::experiment_on(const std::string& model, const std::string& experiment, const Json& settings,
                          const std::vector<std::string>& beside) {
  Plan alone(conditions_);
  for (int64_t seed = 1; seed <= conditions_.seeds; ++seed) {
    for (const Step& step : steps_) {
      if (step.kind == StepKind::train && step.id == training_id(model, seed)) alone.steps_.push_back(step);
    }
  }
  alone.experiment_on_trained(experiment, settings);
  int64_t seed = 0;
  for (Step& step : alone.steps_) {
    if (step.kind != StepKind::experiment) continue;
    ++seed;
    for (const std::string& other : beside) {
      step.beside.push_back(training_id(other, seed));
      step.settings["beside"].push_back(other);
    }
    steps_.push_back(std::move(step));
  }
  return *this;
}

Plan& Plan::streaming(const std::string& name, const std::string& model, const std::string& cache,
                      const std::vector<StepKind>& kinds, const Json& more, const std::string& piece) {
  for (int64_t seed = 1; seed <= conditions_.seeds; ++seed) {
    Step training{training_id(model, seed), StepKind::train, "", {}, ""};
    training.seed = seed;
    for (const StepKind kind : kinds) {
      Json through = settings(kind);
      through.update(more);
      through["cache"] = cache;
      measure_model(training_id(name, seed), training, kind, through, piece);
    }
  }
  return *this;
}

Plan& Plan::once(StepKind kind, const std::string& id, const Json& settings, const std::string& needs) {
  steps_.push_back({id, kind, "", settings, needs});
  return *this;
}

}  // namespace lazy::repro
