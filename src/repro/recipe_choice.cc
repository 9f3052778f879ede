// Answers "Which should I use?" from the measured seeds. The same rule applies to every criterion of a recipe file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/known_names.h"
#include "core/statistics.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

std::string listed(const Words& words) { return fmt::format("{}", fmt::join(words, ", ")); }

}  // namespace

std::optional<Choice> choice_of(const RecipeFile& data, const Conditions& conditions, const Results& results) {
  const ChoiceSpec& spec = data.choice;
  if (spec.models.empty()) return std::nullopt;
  const Variables variables = variables_of(data, conditions);
  for (const std::string& model : spec.models)
    expect_known("[choice] models", model, model_names(data, conditions, variables), "a model of the recipe");
  Choice out{
      spec.title, {}, {"", {"question", "mean of the leader", "leads", "no significant difference from it"}, {}}};
  // By model: criteria in which it is the best or does not differ from the best model.
  std::map<std::string, Words> led;
  Words better, worse, equal, never = spec.models;
  for (const CriterionSpec& c : data.criteria) {
    const MeasureSpec measure = filled_measure(data, c.measure, variables, c.where);
    const double sign = c.better == "lower" ? 1 : -1;
    std::map<std::string, BySeed> all;
    std::string leader;
    double best = 0;
    for (const std::string& model : spec.models) {
      BySeed values = seed_values(measure, model, results);
      const auto measured = present(values);
      if (!measured.empty()) std::erase(never, model);
      if (measured.size() < 2) continue;
      const double mean = sign * mean_of(measured);
      if (all.empty() || mean < best) leader = model, best = mean;
      all[model] = std::move(values);
    }
    if (all.size() < 2) continue;
    Words beside;
    led[leader].push_back(c.name);
    for (const std::string& model : spec.models) {
      if (model == leader || !all.contains(model)) continue;
      if (differs_from_zero(paired_difference(all.at(model), all.at(leader)))) continue;
      beside.push_back(model);
      led[model].push_back(c.name);
    }
    out.table.rows.push_back({c.name,
                              fmt::format("{:.4g}{}{}", sign * best, measure.unit.empty() ? "" : " ", measure.unit),
                              leader, beside.empty() ? "–" : listed(beside)});
    if (!all.contains(spec.asked) || !all.contains(spec.against)) continue;
    const UnitEstimate difference = paired_difference(all.at(spec.asked), all.at(spec.against));
    (!differs_from_zero(difference) ? equal : sign * difference.value < 0 ? better : worse).push_back(c.name);
  }
  const size_t questions = out.table.rows.size();
  if (questions == 0) {
    out.paragraphs = {"There are not yet two models with at least two recorded seeds."};
    return out;
  }
  out.paragraphs.push_back(
      "The model with the best mean leads a question. Another model does not differ significantly from it if the "
      "interval (95 %, Student's t over seeds, no correction) of their paired difference contains zero.");
  Words order = spec.models, counts;
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return led[a].size() > led[b].size(); });
  for (const std::string& model : order) {
    if (!led[model].empty()) counts.push_back(fmt::format("{} ({} of {})", model, led[model].size(), questions));
  }
  out.paragraphs.push_back(
      "Questions in which a model leads or does not differ significantly from the leader: " + listed(counts) + ".");
  if (better.size() + worse.size() + equal.size() > 0) {
    std::string text = better.empty()
                           ? fmt::format("{} is not better than {} in any question", spec.asked, spec.against)
                           : fmt::format("{} is better than {} in: {}", spec.asked, spec.against, listed(better));
    if (!worse.empty()) text += fmt::format("; {} is better in: {}", spec.against, listed(worse));
    if (!equal.empty()) text += fmt::format("; no significant difference in: {}", listed(equal));
    out.paragraphs.push_back(text + ".");
  }
  if (!never.empty()) out.paragraphs.push_back("Not recorded yet: " + listed(never) + ".");
  return out;
}

}  // namespace lazy::repro
