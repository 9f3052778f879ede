// "Which should I use?": what the measured seeds say, by one rule for every criterion of a recipe file.
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
  Choice out{spec.title, {}, {"", {"question", "mean of the leader", "leads", "not told apart from it"}, {}}};
  std::map<std::string, Words> led;  // by model: the criteria in which it leads or is not told apart
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
    out.paragraphs = {"No records yet of two models with at least two seeds."};
    return out;
  }
  out.paragraphs.push_back(
      "By rule: in each question the model of the best mean leads; others are not told apart from it while the "
      "interval (95 %, Student's t over seeds, without a correction) of their paired difference from it holds zero.");
  Words order = spec.models, counts;
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return led[a].size() > led[b].size(); });
  for (const std::string& model : order) {
    if (!led[model].empty()) counts.push_back(fmt::format("{} ({} of {})", model, led[model].size(), questions));
  }
  out.paragraphs.push_back("Leads, or is not told apart from the leader: " + listed(counts) + ".");
  if (better.size() + worse.size() + equal.size() > 0) {
    std::string text =
        better.empty()
            ? fmt::format("In no question is {} the better choice than {}", spec.asked, spec.against)
            : fmt::format("{} is the better choice than {} for: {}", spec.asked, spec.against, listed(better));
    if (!worse.empty()) text += fmt::format("; {} is the better one for: {}", spec.against, listed(worse));
    if (!equal.empty()) text += fmt::format("; not told apart: {}", listed(equal));
    out.paragraphs.push_back(text + ".");
  }
  if (!never.empty()) out.paragraphs.push_back("No records yet of: " + listed(never) + ".");
  return out;
}

}  // namespace lazy::repro
