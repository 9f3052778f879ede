#include "repro/results.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lazy::repro {
namespace {

// Item by item; the texts are the same, so the counts must be.
Groups combine(const Groups& a, const Groups& b, double sign) {
  Groups out(a.size());
  for (size_t g = 0; g < a.size(); ++g) {
    if (g >= b.size() || a[g].size() != b[g].size())
      fail("repro", "two models were measured on different texts; remove their steps and run again");
    for (size_t i = 0; i < a[g].size(); ++i) out[g].push_back(a[g][i] + sign * b[g][i]);
  }
  return out;
}

}  // namespace

const Json* Results::find(const std::string& step) const {
  const auto found = values_.find(step);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::pair<std::string, const Json*>> Results::of_kind(const std::string& ending) const {
  std::vector<std::pair<std::string, const Json*>> out;
  for (const auto& [step, values] : values_) {
    if (step.ends_with(ending)) out.emplace_back(step.substr(0, step.size() - ending.size()), &values);
  }
  return out;
}

Groups Results::numbers(const std::string& model, StepKind kind, const std::string& field) const {
  Groups groups;
  for (int64_t seed = 1; seed <= seeds_; ++seed) {
    const Json* values = find(training_id(model, seed) + "." + repro::name(kind));
    const auto pointer = Json::json_pointer("/" + field);
    if (!values || !values->contains(pointer)) return {};
    groups.push_back(values->at(pointer).get<std::vector<double>>());
  }
  return groups;
}

std::optional<Estimate> Results::mean(const std::string& model, StepKind kind, const std::string& field) const {
  const Groups groups = numbers(model, kind, field);
  if (groups.empty()) return std::nullopt;
  return bootstrap_mean(groups);
}

std::optional<Estimate> Results::paired_difference(const std::string& a, const std::string& b, StepKind kind,
                                                   const std::string& field) const {
  const Groups x = numbers(a, kind, field), y = numbers(b, kind, field);
  if (x.empty() || y.empty()) return std::nullopt;
  return bootstrap_mean(combine(x, y, -1));
}

std::optional<Estimate> Results::paired_change(const std::string& a, const std::string& b, StepKind kind,
                                               const std::string& from, const std::string& to) const {
  const Groups a0 = numbers(a, kind, from), a1 = numbers(a, kind, to), b0 = numbers(b, kind, from),
               b1 = numbers(b, kind, to);
  if (a0.empty() || a1.empty() || b0.empty() || b1.empty()) return std::nullopt;
  return bootstrap_mean(combine(combine(a1, a0, -1), combine(b1, b0, -1), -1));
}

template <typename Head>
std::vector<std::vector<Head>> Results::learned(const std::string& model, const char* name) const {
  using Layers = std::vector<std::vector<Head>>;
  const Json* values = find(model + ".learned");
  return values && values->contains(name) ? values->at(name).template get<Layers>() : Layers{};
}

std::vector<std::vector<double>> Results::offsets(const std::string& model) const {
  return learned<double>(model, "tau");
}
std::vector<std::vector<double>> Results::alibi_slopes(const std::string& model) const {
  return learned<double>(model, "alibi_slopes");
}
std::vector<std::vector<BiasCurve>> Results::distance_bias(const std::string& model) const {
  return learned<BiasCurve>(model, "distance_bias");
}

std::string over(const Results& results, const std::string& items) {
  return results.seeds() > 1 ? fmt::format("{} seeds and their {}", results.seeds(), items)
                             : items + ", one training seed";
}

Finding judge(const Claim& claim, const std::optional<Estimate>& difference, ExpectedSign published,
              const std::string& missing) {
  return difference ? judge_sign(claim, *difference, published) : undecided(claim, missing);
}

}  // namespace lazy::repro
