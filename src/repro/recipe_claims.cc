// Computes the findings of a recipe file. Each claim yields one effect per seed, and all claims are judged together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/known_names.h"
#include "repro/measure_kinds.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

constexpr int64_t kMinItems = 8;  // minimum number of texts or heads for a confidence interval from one model
constexpr const char* kGiven = "given";
using Doubles = std::vector<double>;

struct Page {
  const RecipeFile& data;
  const Conditions& conditions;
  const Results& results;
  Variables variables;            // the recipe's variables at this scale
  std::set<std::string> trained;  // names of the models that the plan trains
  Words known;                    // model names that a claim may refer to
};

MeasureSpec measure_at(const Page& page, const std::string& name, const std::string& where) {
  return filled_measure(page.data, name, page.variables, where);
}

Numbers numbers_of(const Page& page, const MeasureSpec& measure, const std::string& model, int64_t seed) {
  const Json* values = step_values(page.results, measure.step, model, seed);
  return values ? measured_numbers(*values, measure) : Numbers{};
}

double reduced(const ClaimSpec& c, const Doubles& items) { return c.variance ? variance_of(items) : mean_of(items); }

// The effect for one seed: the number that the claim is about, and, if both sides of the comparison have the same items
// (texts or heads), the effect per item.
struct SeedEffect {
  std::optional<double> value;
  Doubles items;
  std::string note, missing;
};

struct Side {
  Numbers numbers;
  double value = 0;
  bool measured = false;
};

Side side_of(const Page& page, const ClaimSpec& c, const std::string& measure, const std::string& model, int64_t seed) {
  Side side{numbers_of(page, measure_at(page, measure, c.where), model, seed)};
  if (side.numbers.items.empty()) return side;
  if (c.variance && side.numbers.items.size() < 2) {
    side.numbers.missing = "a variance needs at least two heads";
    return side;
  }
  side.value = reduced(c, side.numbers.items);
  side.measured = true;
  if (c.from.empty()) return side;
  const Numbers from = numbers_of(page, measure_at(page, c.from, c.where), model, seed);
  if (from.items.size() != side.numbers.items.size()) {
    side.measured = false;
    side.numbers.missing = from.missing;
    return side;
  }
  side.value -= reduced(c, from.items);
  for (size_t i = 0; i < from.items.size(); ++i) side.numbers.items[i] -= from.items[i];
  return side;
}

// Returns the loss of a curve {"tokens": [...], "loss": [...]} after a number of tokens, interpolated linearly, or
// nullopt outside of the range of the curve.
std::optional<double> loss_at(const Json& curve, double tokens) {
  const Doubles x = curve.at("tokens").get<Doubles>(), y = curve.at("loss").get<Doubles>();
  const auto next = std::lower_bound(x.begin(), x.end(), tokens);
  if (next == x.end() || (next == x.begin() && *next > tokens)) return std::nullopt;
  const auto n = static_cast<size_t>(next - x.begin());
  if (*next == tokens) return y[n];
  return y[n - 1] + (y[n] - y[n - 1]) * (tokens - x[n - 1]) / (x[n] - x[n - 1]);
}

// Returns the difference between two training curves at the time when the shorter training ends.
SeedEffect effect_at_equal_time(const Page& page, const ClaimSpec& c, int64_t seed) {
  SeedEffect out;
  const MeasureSpec measure = measure_at(page, c.measure, c.where);
  const Numbers pace = numbers_of(page, measure_at(page, c.pace, c.where), c.over, seed);
  Json curves[2];
  for (size_t side = 0; side < 2; ++side) {
    const Json* values = step_values(page.results, measure.step, side == 0 ? c.over : c.under, seed);
    if (values) curves[side] = at_path(*values, measure.path);
    if (!curves[side].is_object() || curves[side].at("tokens").empty()) return out;
  }
  if (pace.items.empty()) {
    out.missing = pace.missing;
    return out;
  }
  const double slower = mean_of(pace.items);
  const auto end = [&](size_t side) { return curves[side].at("tokens").back().get<double>(); };
  const auto over = loss_at(curves[0], std::min(end(0), end(1) / slower)),
             under = loss_at(curves[1], std::min(end(1), end(0) * slower));
  if (over && under)
    out.value = *over - *under;
  else
    out.missing = "the slower training has no validation before this time";
  return out;
}

SeedEffect effect_of(const Page& page, const ClaimSpec& c, int64_t seed) {
  if (!c.pace.empty()) return effect_at_equal_time(page, c, seed);
  const Side over = side_of(page, c, c.measure, c.over, seed);
  SeedEffect out;
  out.note = over.numbers.note;
  if (!over.measured) {
    out.missing = over.numbers.missing;
    return out;
  }
  if (c.form == "value") {
    out.value = over.value;
    out.items = over.numbers.items;
    return out;
  }
  Side under =
      side_of(page, c, c.under_measure.empty() ? c.measure : c.under_measure, c.under.empty() ? c.over : c.under, seed);
  if (!under.measured) {
    out.missing = under.numbers.missing;
    return out;
  }
  Doubles& other = under.numbers.items;
  Doubles items = over.numbers.items;
  // Two models that were measured on different texts cannot be compared in pairs, but two parts of one model can. A
  // record may contain only the mean over texts.
  const bool mean_alone = items.size() == 1 || other.size() == 1;
  if (other.size() != items.size() && c.under_measure.empty() && !mean_alone) {
    out.missing = "the two models were measured on different texts";
    return out;
  }
  // Parts of one model: keep the texts that both parts have.
  if (other.size() != items.size() && c.units == "texts" && !mean_alone) {
    other.resize(std::min(other.size(), items.size()));
    items.resize(other.size());
  }
  const bool ratio = c.form == "ratio";
  out.value = ratio ? over.value / under.value : over.value - c.factor * under.value;
  if (other.size() == items.size() && !c.variance) {
    for (size_t i = 0; i < items.size(); ++i)
      out.items.push_back(ratio ? items[i] / other[i] : items[i] - c.factor * other[i]);
  }
  return out;
}

int64_t seeds_of(const Page& page, const ClaimSpec& c) {
  const MeasureSpec measure = measure_at(page, c.measure, c.where);
  int64_t toys = 0;
  for (const StepSpec& step : page.data.steps) toys = std::max(toys, step.seeds);
  return measure.step == "toy" ? std::max(toys, page.results.seeds()) : page.results.seeds();
}

// Checks a condition of the form "PATH=VALUE", or "PATH" for a value that must exist.
bool holds(const Json& values, const std::string& condition) {
  const size_t equals = condition.find('=');
  if (equals == std::string::npos) return !at_path(values, condition).is_null();
  const Json found = at_path(values, condition.substr(0, equals));
  const std::string wanted = condition.substr(equals + 1);
  return found.is_string() ? found.get<std::string>() == wanted : found.dump() == wanted;
}

// Returns the values of the step that the claim measures, for the first seed.
const Json* values_of(const Page& page, const ClaimSpec& c) {
  return step_values(page.results, measure_at(page, c.measure, c.where).step, c.over, 1);
}

// Whether the claim applies to this model.
bool applies(const Page& page, const ClaimSpec& c) {
  if (c.when_any.empty() && c.when_none.empty()) return true;
  const Json* values = values_of(page, c);
  if (!values) return false;
  const auto holds_here = [&](const std::string& condition) { return holds(*values, condition); };
  return (c.when_any.empty() || std::any_of(c.when_any.begin(), c.when_any.end(), holds_here)) &&
         std::none_of(c.when_none.begin(), c.when_none.end(), holds_here);
}

// Whether at least one of the models that are expected to show the effect shows it. Returns true if nothing has been
// measured yet.
bool testable(const Page& page, const ClaimSpec& c) {
  if (c.needs.empty()) return true;
  bool any = false;
  for (const std::string& model : c.needs_models) {
    Doubles by_seed;
    for (int64_t seed = 1; seed <= page.results.seeds(); ++seed) {
      const Numbers found = numbers_of(page, measure_at(page, c.needs, c.where), model, seed);
      if (!found.items.empty()) by_seed.push_back(mean_of(found.items));
    }
    if (by_seed.empty()) continue;
    any = true;
    const double mean = mean_of(by_seed);
    if (c.needs_side == "above" ? mean > c.needs_bound : mean < c.needs_bound) return true;
  }
  return !any;
}

// Returns the reason why this scale or model cannot test the claim, or an empty string if it can.
std::string obstacle(const Page& page, const ClaimSpec& c) {
  const bool here = c.scales.empty() || contains(c.scales, page.conditions.scale.name);
  if (!here || !testable(page, c)) return c.otherwise;
  if (c.comparable.empty()) return "";
  const Json* values = values_of(page, c);
  const bool comparable = !values || std::all_of(c.comparable.begin(), c.comparable.end(),
                                                 [&](const std::string& item) { return holds(*values, item); });
  return comparable ? "" : c.otherwise;
}

Region region_of(const ClaimSpec& c) {
  if (c.side == "below" || c.side == "at most") return below(c.bound);
  if (c.side == "above" || c.side == "at least") return above(c.bound);
  const double margin = c.within * std::abs(c.bound);
  return {c.bound - margin, c.bound + margin};
}

std::string rule_of(const ClaimSpec& c) {
  if (c.side == "none") return "";
  if (c.side == "printed") return c.printed + ", to the printed digits";
  if (c.side == "within") return fmt::format("within {:g} % of {:g}", 100 * c.within, c.bound);
  return fmt::format("{} {:g}", c.side, c.bound);
}

// Returns the interval over the texts of a single training, as text. It does not affect the verdict.
std::string over_its_texts(const SeedEffect& effect, const MeasureSpec& measure) {
  if (effect.items.size() < kMinItems || measure.items.empty()) return "";
  const UnitEstimate e = over_units(effect.items, Region{});
  if (!e.interval) return "";
  return fmt::format("over its {} {} [{:.4g}, {:.4g}], which does not cover other trainings", effect.items.size(),
                     measure.items, e.interval->low, e.interval->high);
}

// Checks the names of measures and models, so that a wrong name is an error even if nothing has been measured.
void check_names(const Page& page, const ClaimSpec& c) {
  for (const std::string* measure : {&c.from, &c.under_measure, &c.pace, &c.or_measure, &c.needs}) {
    if (!measure->empty()) measure_at(page, *measure, c.where);
  }
  Words names{c.over, c.under};
  names.insert(names.end(), c.needs_models.begin(), c.needs_models.end());
  for (const std::string& name : names) {
    if (!name.empty()) expect_known(c.where, name, page.known, "a model of the recipe");
  }
}

TestedClaim tested(const Page& page, const ClaimSpec& c, const std::string& prefix) {
  const MeasureSpec measure = measure_at(page, c.measure, c.where);
  TestedClaim out;
  Finding& f = out.finding;
  f.claim = prefix + c.text;
  f.paper = c.paper;
  f.unit = c.unit.empty() ? measure.unit : c.unit;
  f.over = c.units;
  f.family = c.family;
  f.rule = rule_of(c);
  f.models = c.under.empty() || c.under == c.over ? c.over : c.over + ", " + c.under;
  std::vector<SeedEffect> effects;
  std::string missing;
  for (int64_t seed = 1; seed <= (c.units == "seeds" ? seeds_of(page, c) : 1); ++seed) {
    SeedEffect effect = effect_of(page, c, seed);
    if (effect.value)
      effects.push_back(std::move(effect));
    else if (missing.empty())
      missing = effect.missing;
  }
  const std::string why_not = obstacle(page, c);
  const bool ruled = c.side != "none" && c.side != "printed" && why_not.empty();
  if (ruled) {
    out.rule = Rule{region_of(c)};
    out.rule->units = c.units;
    if (c.units != "seeds") out.rule->least = kMinItems;
  }
  if (effects.empty()) {
    f.reason = missing.empty() ? c.otherwise_input : missing;
    return out;
  }
  Doubles by_unit;
  if (c.units == "seeds") {
    for (const SeedEffect& effect : effects) by_unit.push_back(*effect.value);
  } else {
    by_unit = effects.front().items;
  }
  f.estimate = over_units(by_unit, region_of(c));
  if (!why_not.empty()) {
    f.verdict = Verdict::not_testable;
    f.reason = why_not;
  } else if (c.side == "printed" && !std::isfinite(f.estimate->value)) {
    f.reason = "the effect is not a finite number";
  } else if (c.side == "printed") {
    bool same = rounds_to(f.estimate->value, c.printed);
    if (!same && !c.or_measure.empty()) {  // the publication does not say which of two quantities it prints
      const Numbers other = numbers_of(page, measure_at(page, c.or_measure, c.where), c.over, 1);
      same = !other.items.empty() && rounds_to(mean_of(other.items), c.printed);
      if (same) f.estimate = over_units(other.items, Region{});
    }
    f.verdict = same ? Verdict::reproduced : Verdict::refuted;
    f.reason = same ? "the effect rounds to the printed digits" : "the effect does not round to the printed digits";
    if (!same && !c.less.empty() && f.estimate->value < std::stod(c.printed)) {
      f.verdict = Verdict::not_testable;
      f.reason = c.less;
    }
  } else if (c.side == "none") {
    f.reason = "no published number to compare with";
  }
  if (effects.size() == 1 && c.units == "seeds" && c.side != "printed")
    add_reason(f.reason, over_its_texts(effects.front(), measure));
  add_reason(f.reason, effects.front().note);
  return out;
}

// Adds the claim. If the claim is about given models, adds one copy for every model of --model that the plan does not
// train.
void add_claim(const Page& page, const ClaimSpec& c, std::vector<TestedClaim>& out) {
  check_names(page, c);
  if (c.over != kGiven) {
    if (applies(page, c)) out.push_back(tested(page, c, ""));
    return;
  }
  std::vector<std::string> given;
  for (const auto& [name, folder] : page.conditions.models) {
    if (!page.trained.contains(name)) given.push_back(name);
  }
  for (const std::string& name : given) {
    ClaimSpec of_model = c;
    of_model.over = name;
    if (applies(page, of_model) && values_of(page, of_model))
      out.push_back(tested(page, of_model, given.size() > 1 || !page.trained.empty() ? name + ": " : ""));
  }
  if (given.empty() && page.trained.empty() && c.when_any.empty() && c.when_none.empty()) {
    TestedClaim missing = tested(page, c, "");
    missing.finding.reason = "no --model DIR was given";
    missing.finding.models.clear();
    out.push_back(std::move(missing));
  }
}

ClaimSpec filled(ClaimSpec c, const Variables& v) {
  for (std::string* text :
       {&c.text, &c.paper, &c.measure, &c.from, &c.under_measure, &c.or_measure, &c.over, &c.under, &c.printed})
    *text = fill(*text, v, c.where);
  for (Words* list : {&c.needs_models, &c.when_any, &c.when_none, &c.comparable}) *list = fill(*list, v, c.where);
  return c;
}

std::string published_number(double value, const PublishedColumn& column) {
  return fmt::format("{:g}{}", value, column.in.empty() ? "" : " " + column.in);
}

bool wanted(const Words& list, const std::string& word) { return list.empty() || contains(list, word); }

// Returns one claim for every row and column of the published table. The claim is about the order of the row relative
// to the reference row, or about the value of the row. Each model is used only once. {row}, {column}, {reference} and
// {side} in the texts are replaced.
std::vector<ClaimSpec> published_claims(const Page& page, const ClaimSpec& c) {
  std::vector<ClaimSpec> out;
  const RecipeFile& data = page.data;
  const bool order = c.from_published == "order";
  const PublishedRowSpec* reference = nullptr;
  for (const PublishedRowSpec& row : data.rows) {
    if (row.row.name == c.reference) reference = &row;
  }
  std::set<std::string> seen;
  for (const PublishedRowSpec& row : data.rows) {
    const std::string model = model_at(row, page.conditions.scale);
    const bool first = !model.empty() && seen.insert(model).second;
    if (!first || !wanted(c.rows, row.row.name) || &row == reference) continue;
    for (size_t i = 0; i < data.columns.size(); ++i) {
      const PublishedColumn& column = data.columns[i];
      if (!wanted(c.columns, column.title) || (column.measure.empty() && c.measure.empty())) continue;
      const double value = row.row.values[i];
      ClaimSpec one = c;
      if (one.measure.empty()) one.measure = column.measure, one.unit = column.unit;
      Variables words = page.variables;
      words.insert({{"value", fmt::format("{:g}", value)},
                    {"row", row.row.name},
                    {"column", column.words},
                    {"reference", c.reference}});
      one.over = model;
      if (order) {
        const double other = reference->row.values[i];
        if (value == other) continue;
        one.under = model_at(*reference, page.conditions.scale);
        if (one.under == one.over) continue;
        one.side = value > other ? "above" : "below";
        words["side"] = one.side;
        one.paper = fmt::format("{} against {} ({})", published_number(value, column), published_number(other, column),
                                data.source);
      } else {
        one.form = "value";
        one.side = "within";
        one.bound = value * column.factor;
        if (one.paper.empty()) one.paper = fmt::format("{} ({})", published_number(value, column), data.source);
      }
      for (std::string* text : {&one.text, &one.paper, &one.measure}) *text = fill(*text, words, c.where);
      out.push_back(std::move(one));
    }
  }
  return out;
}

}  // namespace

std::string model_at(const PublishedRowSpec& row, const Scale& scale) {
  return scale.is_paper() ? row.row.model : row.model_below_paper;
}

MeasureSpec find_measure(const RecipeFile& data, const std::string& name, const std::string& where) {
  for (const MeasureSpec& m : data.measures) {
    if (m.name == name) return m;
  }
  if (const size_t colon = name.find(':'); colon != std::string::npos && colon > 0) {
    MeasureSpec m;
    m.where = where;
    m.name = name;
    m.step = name.substr(0, colon);
    m.path = name.substr(colon + 1);
    return m;
  }
  const Words names = names_of(data.measures);
  fail("config", "{} measure: expected STEP:PATH or one of {}, found '{}'{}", where, fmt::join(names, ", "), name,
       did_you_mean(name, names));
}

MeasureSpec filled_measure(const RecipeFile& data, const std::string& name, const Variables& variables,
                           const std::string& where) {
  MeasureSpec m = find_measure(data, name, where);
  for (std::string* text : {&m.path, &m.minus, &m.per, &m.most}) *text = fill(*text, variables, m.where);
  return m;
}

// A step without a model, such as a toy experiment or a training, is found by its name.
const Json* step_values(const Results& results, const std::string& step, const std::string& model, int64_t seed) {
  if (model.empty()) return results.find(step);
  if (step == "toy") return results.find(fmt::format("{}.seed{}", model, seed - 1));
  if (step == name(StepKind::train)) return results.find(training_id(model, seed));
  return results.find(training_id(model, seed) + "." + step);
}

BySeed seed_values(const MeasureSpec& measure, const std::string& model, const Results& results) {
  BySeed out;
  for (int64_t seed = 1; seed <= results.seeds(); ++seed) {
    const Json* values = step_values(results, measure.step, model, seed);
    const Numbers found = values ? measured_numbers(*values, measure) : Numbers{};
    out.push_back(found.items.empty() ? std::nullopt : std::optional(mean_of(found.items)));
  }
  return out;
}

std::vector<double> present(const BySeed& values) {
  std::vector<double> out;
  for (const auto& value : values) {
    if (value) out.push_back(*value);
  }
  return out;
}

UnitEstimate paired_difference(const BySeed& a, const BySeed& b) {
  std::vector<double> out;
  for (size_t seed = 0; seed < a.size(); ++seed) {
    if (a[seed] && b[seed]) out.push_back(*a[seed] - *b[seed]);
  }
  return over_units(out, {});
}

bool differs_from_zero(const UnitEstimate& difference) {
  return difference.interval && (difference.interval->low > 0 || difference.interval->high < 0);
}

std::vector<Finding> judge_of(const RecipeFile& data, const Conditions& conditions, const Results& results) {
  const Variables variables = variables_of(data, conditions);
  Page page{data, conditions, results, variables, {}, model_names(data, conditions, variables)};
  page.known.emplace(page.known.begin(), kGiven);
  for (const Step& step : plan_of(data, conditions)) {
    if (step.kind == StepKind::train) page.trained.insert(step.id);
  }
  for (const StepSpec& step : data.steps) {
    if (!step.name.empty()) page.known.push_back(step.name);
    for (const Variables& v : rounds(step.loops, page.variables, conditions, step.where)) {
      if (step.of == "seeds") page.known.push_back(fill(step.id, v, step.where));
    }
  }
  std::vector<TestedClaim> claims;
  for (const ClaimSpec& spec : data.claims) {
    if (!spec.from_published.empty()) {
      for (const ClaimSpec& c : published_claims(page, spec)) add_claim(page, c, claims);
      continue;
    }
    for (const Variables& v : rounds(spec.loops, page.variables, conditions, spec.where))
      add_claim(page, filled(spec, v), claims);
  }
  return judge_page(std::move(claims));
}

}  // namespace lazy::repro
