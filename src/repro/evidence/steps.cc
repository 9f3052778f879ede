#include "repro/evidence/steps.h"

#include <fmt/format.h>

#include "core/json_field.h"
#include "report/run.h"
#include "repro/configs.h"
#include "repro/evidence/record.h"
#include "repro/evidence/states.h"

namespace lazy::repro {
namespace fs = std::filesystem;

namespace {

// Returns a text of everything that affects the numbers of a training, except the corpus and the device.
std::string identity(const train::TrainConfig& config) {
  return config.settings().dump() + config.model.to_json().dump();
}

// Returns the values of a training step from the record of a run. They do not contain the speed, because runs may have
// shared a GPU. They also do not contain the curve of validation losses, because the runs of the protocol validate on
// different sequences than recipes.
Json trained(const Json& record) {
  return {{"tokens", record.at("tokens")},
          {"seconds", record.at("seconds").at("training")},
          {"parameters", record.at("parameters")}};
}

Json sinks(const Json& measured, const Json& settings, int64_t length) {
  const std::string key = std::to_string(length);
  if (!measured.contains(key)) return nullptr;
  const Json& m = measured.at(key).at(settings.at("bos").get<bool>() ? "bos" : "no_bos");
  Json out;
  for (const char* what : {"sink_ratio", "density", "released_mass", "alive_fraction", "sink_1", "excess"})
    out[what] = {m.at(what)};
  return out;
}

Json lengths(const Json& measured, const Json& settings) {
  const double tokens =
      settings.at("blocks").get<double>() * settings.value("stretch", settings.at("lengths").back().get<double>());
  Json out;
  for (const Json& length : settings.at("lengths")) {
    const std::string key = length.dump();
    const Json& found = measured.at("bos_every_window");
    if (!found.contains(key) || found.at(key).at("tokens") != tokens) return nullptr;
    out["heldout"][key] = found.at(key).at("by_group");
  }
  return out;
}

// Expands lists [layer][head][range of distances] to [layer][head][distance].
Json biases_by_distance(const Json& bias) {
  Json out = Json::array();
  for (const Json& layer : bias.at("bias")) {
    out.push_back(Json::array());
    for (const Json& head : layer) {
      Json curve = Json::array();
      for (size_t n = 0; n < head.size(); ++n) {
        const Json& range = bias.at("distances").at(n);
        for (int64_t d = range.at(0); d <= range.at(1).get<int64_t>(); ++d) curve.push_back(head.at(n));
      }
      out.back().push_back(std::move(curve));
    }
  }
  return out;
}

Json learned(const Json& measured) {
  Json out = {{"tau_initial", measured.value("tau_initial", 0.0)}};
  if (measured.contains("tau")) out["tau"] = measured.at("tau");
  if (measured.contains("distance_bias")) out["distance_bias"] = biases_by_distance(measured.at("distance_bias"));
  return out;
}

// Returns the values of a step according to the record of a run, or null if the record does not contain them.
Json values_of(const Step& step, const Json& record) {
  if (step.kind == StepKind::train) return trained(record);
  const Json& measures = record.at("measures");
  if (step.settings.contains("cache")) return nullptr;
  switch (step.kind) {
    case StepKind::heldout:
      return {{"loss", {measures.at("heldout").at("loss")}}};
    case StepKind::sinks:
      return sinks(measures.at("sinks"), step.settings,
                   record.at("configuration").at("training.seq_len").get<int64_t>());
    case StepKind::lengths:
      return lengths(measures.at("lengths"), step.settings);
    case StepKind::learned:
      // Records do not contain trained ALiBi slopes; only a recorded step provides them.
      if (record.at("model").value("alibi_trainable", false)) return nullptr;
      return learned(measures.at("learned"));
    default:
      return nullptr;
  }
}

double seconds_of(const Step& step, const Json& record) {
  if (step.kind == StepKind::train) return record.at("seconds").at("training");
  return record.at("measures").at("seconds").value(name(step.kind), 0.0);
}

// Returns the key by which a recorded step is found. `trainings` contains the identity() of each training.
std::string step_key(const std::string& kind, const Json& settings, const std::vector<std::string>& trainings) {
  std::string key = kind;
  if (kind != name(StepKind::train)) key += settings.dump();
  for (const std::string& training : trainings) key += training;
  return key;
}

// Ids of the trainings that a step runs or whose models it measures.
std::vector<std::string> trainings_of(const Step& step) {
  return step.kind == StepKind::train ? std::vector{step.id} : measured_models(step);
}

}  // namespace

Json recorded_inputs(const Step& step, const std::vector<Step>& plan, const fs::path& corpus) {
  Json trainings = Json::array();
  for (const std::string& id : trainings_of(step)) {
    for (const Step& training : plan)
      if (training.id == id) trainings.push_back(training.settings);
  }
  return {{"trainings", std::move(trainings)}, {"corpus", corpus.empty() ? "" : corpus_fingerprint(corpus)}};
}

RecordedRuns::RecordedRuns(const fs::path& records, const fs::path& corpus, const fs::path& configs)
    : corpus_(corpus.empty() ? "corpus" : corpus), configs_(configs) {
  if (!fs::is_directory(records)) return;
  const Protocol protocol = embedded_protocol();
  const std::string fingerprint = fs::exists(corpus_ / "corpus.json") ? corpus_fingerprint(corpus_) : "";
  const auto of_this_corpus = [&](const std::string& other) { return fingerprint.empty() || other == fingerprint; };
  write_configs(configs);
  for (const EvidenceRun& run : protocol.runs()) {
    Json record = read_record(records, protocol, run, "");
    if (record.is_null() || !of_this_corpus(record.at("corpus").at("fingerprint"))) continue;
    runs_[repro::identity(run_config(protocol, run, configs, corpus_, "run", "cpu"))] = {run.id(), std::move(record)};
  }
  if (!fs::is_directory(records / "steps")) return;
  for (const auto& entry : fs::directory_iterator(records / "steps")) {
    const fs::path file = entry.path() / "record.json";
    Json record = report::load_json(file);
    const OrderedJsonField field("repro", record, file.string());
    for (const char* key : {"values", "settings", "inputs"}) field[key];
    for (const char* key : {"device", "finished"}) field[key].string();
    field["seconds"].number();
    const std::string kind = field["kind"].string(), step = field["step"].string();
    if (!of_this_corpus(field["inputs"]["corpus"].string())) continue;
    std::vector<std::string> trainings;
    bool given = false;
    const OrderedJsonField recorded = field["inputs"]["trainings"];
    for (size_t n = 0; n < recorded.size(); ++n) {
      const OrderedJsonField training = recorded.at(n);
      given |= training.has("given");
      for (const char* key : {"extends", "overrides"}) training[key];
      if (!given) trainings.push_back(identity({step, StepKind::train, "", training.json(), ""}));
    }
    if (given) continue;
    const std::string key = step_key(kind, record.at("settings"), trainings);
    steps_[key] = {"steps/" + entry.path().filename().string(), std::move(record)};
  }
}

std::string RecordedRuns::identity(const Step& training) const {
  return repro::identity(train_config(training, configs_, corpus_, "run", {"training.device=\"cpu\""}));
}

std::map<std::string, RecordedStep> RecordedRuns::steps(const std::vector<Step>& plan) const {
  std::map<std::string, RecordedStep> out;
  if (runs_.empty() && steps_.empty()) return out;
  std::map<std::string, std::string> identities;  // keys: ids of the training steps
  const auto values = [&out](const std::string& id) -> const Json* {
    const auto found = out.find(id);
    return found == out.end() ? nullptr : &found->second.record.at("values");
  };
  for (const Step& planned : plan) {
    const Step step = with_choice(planned, values);
    if (step.settings.contains("alternatives")) continue;  // the trials have not selected an alternative yet
    if (step.kind == StepKind::train && given_folder(step).empty()) identities[step.id] = identity(step);
    std::vector<std::string> trainings;
    bool known = step.needs != "model" && step.needs != "domain";
    for (const std::string& id : trainings_of(step)) {
      const auto found = identities.find(id);
      known &= found != identities.end();
      if (known) trainings.push_back(found->second);
    }
    if (!known) continue;
    const auto run = trainings.size() == 1 ? runs_.find(trainings.front()) : runs_.end();
    const auto recorded = steps_.find(step_key(name(step.kind), step.settings, trainings));
    Json values = run == runs_.end() ? Json() : values_of(step, run->second.record);
    if (!values.is_null()) {
      if (step.kind == StepKind::train && recorded != steps_.end())  // a recorded step has trained this model again
        values["validation"] = recorded->second.record.at("values").at("validation");
      const RecordedStep& r = run->second;
      out[step.id] = {r.run,
                      {{"step", step.id},
                       {"kind", name(step.kind)},
                       {"model", step.model},
                       {"settings", step.settings},
                       {"device", r.record.at("device")},
                       {"finished", r.record.at("date")},
                       {"seconds", seconds_of(step, r.record)},
                       {"values", std::move(values)}}};
    } else if (recorded != steps_.end()) {
      out[step.id] = recorded->second;
    }
  }
  return out;
}

}  // namespace lazy::repro
