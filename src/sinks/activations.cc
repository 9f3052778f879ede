#include "sinks/activations.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/known_names.h"
#include "core/percent.h"
#include "core/text.h"
#include "model/activation_hooks.h"
#include "model/config.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/safetensors.h"
#include "sinks/scoped_interventions.h"

namespace lazy::sinks {
namespace {

bool is_square(const std::string& place) { return place.ends_with(".scores") || place.ends_with(".weights"); }

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_matches(glob, name); });
}

// Returns those probe points (named activations) of the model that the options select.
std::vector<std::string> places_of(const ModelConfig& config, const ActivationOptions& options) {
  const std::vector<std::string> all = hook_point_names(config);
  for (const auto* globs : {&options.read, &options.save}) {
    for (const std::string& glob : *globs) {
      if (std::any_of(all.begin(), all.end(), [&](const std::string& name) { return glob_matches(glob, name); }))
        continue;
      const std::string near = did_you_mean(glob, all);
      fail("probe", "no probe point '{}' in this model{}", glob,
           near.empty() ? "; docs/guides/sinks.md lists them" : near);
    }
  }
  std::vector<std::string> out;
  for (const std::string& name : all) {
    const bool read = options.read.empty() ? !is_square(name) : matches_any(options.read, name);
    if (read || matches_any(options.save, name)) out.push_back(name);
  }
  return out;
}

std::vector<double> doubles_of(const at::Tensor& tensor) {
  const at::Tensor t = tensor.to(at::kCPU, at::kDouble).contiguous();
  return {t.data_ptr<double>(), t.data_ptr<double>() + t.numel()};
}

ActivationStatistics statistics_of(const std::string& name, const at::Tensor& tensor) {
  ActivationStatistics s{name, {tensor.sizes().begin(), tensor.sizes().end()}};
  const at::Tensor finite = is_square(name) ? tensor.masked_select(tensor.isfinite())
                                            : tensor;  // finite entries only: masked scores are -inf
  if (finite.numel() > 0) {
    const at::Tensor mean = finite.mean(at::kDouble);
    s.mean = mean.item<double>();
    s.deviation = std::sqrt((finite - mean.to(finite.scalar_type())).square().mean(at::kDouble).item<double>());
    s.lowest = finite.min().item<double>();
    s.highest = finite.max().item<double>();
  }
  if (!is_square(name)) {
    const at::Tensor rows = tensor.flatten(1).to(at::kDouble);
    s.norm = doubles_of(rows.norm(2, {1}));
    s.variance = doubles_of(rows.var(1, /*unbiased=*/true));
  }
  return s;
}

}  // namespace

ActivationReport read_activations(LanguageModel& model, const std::vector<int64_t>& ids,
                                  const ActivationOptions& options) {
  if (ids.empty()) fail("probe", "expected at least one token, found none");
  for (const int64_t id : ids) {
    if (id < 0 || id >= model.config().vocab_size)
      fail("probe", "expected token ids below the vocabulary size {}, found {}", model.config().vocab_size, id);
  }
  const at::NoGradGuard no_grad;
  const ScopedInterventions applied(model, options.interventions);
  ActivationReport out;
  ActivationHooks probes = applied.probes();
  for (const std::string& place : places_of(model.config(), options)) {
    const bool save = matches_any(options.save, place);
    probes.read(place, [&out, save](const std::string& name, const at::Tensor& tensor) {
      const at::Tensor one = tensor[0].to(at::kFloat);
      out.places.push_back(statistics_of(name, one));
      if (save) out.tensors.emplace_back(name, one.to(at::kCPU).contiguous().clone());
    });
  }
  ForwardOptions how;
  how.return_stats = model.config().all_attention();
  how.activation_hooks = probes.or_null();
  const auto stats = model.forward(at::tensor(ids, at::kLong).unsqueeze(0).to(model.device()), how).stats;
  if (how.return_stats) {
    MeasureSum sum;
    sum.add(stats, layer_windows(model.config()));
    out.measures = sum.result();
  }
  return out;
}

ActivationReport::ActivationReport() = default;
ActivationReport::ActivationReport(ActivationReport&& other) noexcept = default;
ActivationReport::~ActivationReport() = default;

void save_tensors(const std::filesystem::path& file, const ActivationReport& report) {
  write_safetensors(file, report.tensors);
}

nlohmann::ordered_json to_json(const ActivationReport& probe) {
  nlohmann::ordered_json out{{"places", nlohmann::ordered_json::object()}};
  for (const ActivationStatistics& s : probe.places) {
    auto& place = out["places"][s.name] = {
        {"shape", s.shape}, {"mean", s.mean}, {"deviation", s.deviation}, {"lowest", s.lowest}, {"highest", s.highest}};
    if (!s.norm.empty()) place.update({{"norm", s.norm}, {"variance", s.variance}});
  }
  if (!probe.measures.sink_ratio.empty()) {
    out["attention"] = {{"sink_ratio", probe.measures.sink_ratio},
                        {"density", probe.measures.density},
                        {"released_mass", probe.measures.released_mass},
                        {"alive_fraction", probe.measures.alive_fraction}};
  }
  return out;
}

std::string saved_table(const std::filesystem::path& file, const ActivationReport& report) {
  std::vector<std::vector<std::string>> rows = {{"saved activation", "shape", "dtype", "file"}};
  for (const auto& [name, tensor] : report.tensors) {
    std::string dtype = tensor.scalar_type() == at::kFloat ? "float32" : at::toString(tensor.scalar_type());
    rows.push_back({name, fmt::format("{}", fmt::join(tensor.sizes(), " x ")), std::move(dtype), file.string()});
  }
  return markdown_table(rows, "llll");
}

std::string to_table(const ActivationReport& probe) {
  std::string out =
      "| activation | shape | mean | deviation | lowest | highest | norm, first position | norm, median of the other "
      "positions |\n|---|---|---:|---:|---:|---:|---:|---:|\n";
  for (const ActivationStatistics& s : probe.places) {
    std::vector<double> others(s.norm.begin() + (s.norm.empty() ? 0 : 1), s.norm.end());
    std::nth_element(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2), others.end());
    out +=
        fmt::format("| {} | {} | {:.4g} | {:.4g} | {:.4g} | {:.4g} | {} | {} |\n", s.name, fmt::join(s.shape, " x "),
                    s.mean, s.deviation, s.lowest, s.highest, s.norm.empty() ? "–" : fmt::format("{:.4g}", s.norm[0]),
                    others.empty() ? "–" : fmt::format("{:.4g}", others[others.size() / 2]));
  }
  if (!probe.measures.sink_ratio.empty()) {
    out += fmt::format("\nsink ratio {} %, density {} %, released mass {} %, alive fraction {} %\n",
                       percent_number(mean(probe.measures.sink_ratio)), percent_number(mean(probe.measures.density)),
                       percent_number(mean(probe.measures.released_mass)),
                       percent_number(mean(probe.measures.alive_fraction)));
    out += kMeasureLegend;
  }
  return out;
}

}  // namespace lazy::sinks
