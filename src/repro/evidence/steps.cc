#include "repro/evidence/steps.h"

#include <fmt/format.h>

#include "repro/configs.h"
#include "repro/evidence/record.h"
#include "repro/evidence/states.h"

namespace lazy::repro {
namespace fs = std::filesystem;

namespace {

// Everything that decides a training's numbers but the corpus and the device.
std::string identity(const train::TrainConfig& config) {
  return config.settings().dump() + config.model.to_json().dump();
}

Json trained(const Json& record) {
  return {{"tokens", record.at("tokens")},
          {"tokens_per_second", record.at("tokens_per_second")},
          {"seconds", record.at("seconds").at("training")},
          {"parameters", record.at("parameters")}};
}

Json heldout(const Json& measured, const Json& settings) {
  if (measured.at("bos_per_sequence") != settings.at("bos")) return nullptr;
  return {{"loss", {measured.at("loss")}}};
}

Json sinks(const Json& measured, const Json& settings, int64_t length) {
  const std::string key = std::to_string(length);
  if (!measured.contains(key)) return nullptr;
  const Json& m = measured.at(key).at(settings.at("bos").get<bool>() ? "bos" : "no_bos");
  Json out;
  for (const char* what : {"sink_ratio", "density", "released_mass", "alive_fraction"}) out[what] = {m.at(what)};
  return out;
}

Json lengths(const Json& measured, const Json& settings) {
  Json out;
  for (const Json& length : settings.at("lengths")) {
    const std::string key = length.dump();
    if (!measured.at("bos_every_window").contains(key)) return nullptr;
    out["heldout"][key] = measured.at("bos_every_window").at(key).at("by_group");
  }
  return out;
}

// [layer][head][distance] from [layer][head][range].
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

// Null: the record does not have it.
Json values_of(const Step& step, const Json& record) {
  if (step.kind == StepKind::train) return trained(record);
  const Json& measures = record.at("measures");
  if (step.settings.contains("cache")) return nullptr;
  switch (step.kind) {
    case StepKind::heldout:
      return heldout(measures.at("heldout"), step.settings);
    case StepKind::sinks:
      return sinks(measures.at("sinks"), step.settings,
                   record.at("configuration").at("training.seq_len").get<int64_t>());
    case StepKind::lengths:
      return lengths(measures.at("lengths"), step.settings);
    case StepKind::learned:
      return learned(measures.at("learned"));
    default:
      return nullptr;
  }
}

double seconds_of(const Step& step, const Json& record) {
  if (step.kind == StepKind::train) return record.at("seconds").at("training");
  return record.at("measures").at("seconds").value(name(step.kind), 0.0);
}

}  // namespace

RecordedRuns::RecordedRuns(const fs::path& records, const fs::path& corpus, const fs::path& configs)
    : corpus_(corpus.empty() ? "corpus" : corpus), configs_(configs) {
  if (!fs::is_directory(records)) return;
  const Protocol protocol = embedded_protocol();
  const std::string fingerprint = fs::exists(corpus_ / "corpus.json") ? corpus_fingerprint(corpus_) : "";
  write_configs(configs);
  for (const EvidenceRun& run : protocol.runs()) {
    Json record = read_record(records, protocol, run, "");
    if (record.is_null()) continue;
    if (!fingerprint.empty() && record.at("corpus").at("fingerprint") != fingerprint) continue;
    runs_[identity(run_config(protocol, run, configs, corpus_, "run", "cpu"))] = {run.id(), record_path(records, run),
                                                                                  std::move(record)};
  }
}

std::map<std::string, RecordedStep> RecordedRuns::steps(const std::vector<Step>& plan) const {
  std::map<std::string, RecordedStep> out;
  if (runs_.empty()) return out;
  std::map<std::string, const Run*> models;  // by the id of the training step
  for (const Step& step : plan) {
    if (step.kind == StepKind::train && given_folder(step).empty()) {
      const auto config = train_config(step, configs_, corpus_, "run", {"training.device=\"cpu\""});
      if (const auto found = runs_.find(identity(config)); found != runs_.end()) models[step.id] = &found->second;
    }
    const auto model = models.find(step.kind == StepKind::train ? step.id : step.model);
    if (model == models.end()) continue;
    const Run& run = *model->second;
    Json values = values_of(step, run.record);
    if (values.is_null()) continue;
    out[step.id] = {run.id,
                    run.file,
                    {{"step", step.id},
                     {"kind", name(step.kind)},
                     {"model", step.model},
                     {"settings", step.settings},
                     {"device", run.record.at("device")},
                     {"finished", run.record.at("date")},
                     {"seconds", seconds_of(step, run.record)},
                     {"values", std::move(values)}}};
  }
  return out;
}

}  // namespace lazy::repro
