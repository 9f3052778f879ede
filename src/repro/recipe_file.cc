#include "repro/recipe_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/config.h"
#include "core/error.h"
#include "core/known_names.h"
#include "repro/configs.h"
#include "repro/measure_kinds.h"
#include "repro/pictures.h"

namespace lazy::repro {
namespace {

constexpr const char* kSharedFile = "repro/shared.toml";

std::string place(ConfigSection& s) { return fmt::format("{}: [{}]", s.file(), s.name()); }

Words known_words(ConfigSection& s, const std::string& key, const Words& known) {
  Words out = s.strings(key, {});
  for (const std::string& word : out) expect_known(s, key, word, known);
  return out;
}

Loops read_loops(ConfigSection& s) {
  Loops loops;
  for (const std::string& key : s.keys()) {
    if (key.starts_with("for_")) {
      loops.product.emplace_back(key.substr(4), s.strings(key, {}));
    } else if (key.starts_with("each_")) {
      loops.together.emplace_back(key.substr(5), s.strings(key, {}));
      const size_t first = loops.together.front().second.size(), here = loops.together.back().second.size();
      if (here != first)
        fail("config", "{}: {}: expected {} values like the other each_ lists of the section, found {}", s.where(key),
             key, first, here);
    }
  }
  return loops;
}

ModelSpec read_model(ConfigSection s) {
  ModelSpec m;
  m.where = place(s);
  m.name = s.required_string("name");
  m.like = s.string("like", "");
  m.kind = m.like.empty() ? s.required_string("kind") : s.string("kind", "");
  m.budget = s.string("budget", "");
  if (!m.budget.empty()) expect_known(s, "budget", m.budget, {"main", "ablation", "large"});
  m.overrides = read_overrides(s, "overrides");
  m.files = s.strings("files", {});
  for (const std::string& scale : names_of(scales())) {
    m.at_scale[scale] = read_overrides(s, scale);
    m.files_at[scale] = s.strings("files_" + scale, {});
    m.alternatives_at[scale] = read_overrides(s, "alternatives_" + scale);
    if (m.alternatives_at[scale].size() == 1)
      fail("config", "{}: alternatives_{}: expected at least 2, found 1", s.where("alternatives_" + scale), scale);
  }
  m.trial = read_overrides(s, "trial");
  m.scales = known_words(s, "scales", names_of(scales()));
  m.loops = read_loops(s);
  return m;
}

StepSpec read_step(ConfigSection s) {
  StepSpec step;
  step.where = place(s);
  step.kind = s.required_string("kind");
  expect_known(
      s, "kind", step.kind,
      {"heldout", "sinks", "tasks", "lengths", "learned", "domain", "latency", "datasets", "streaming", "experiment"});
  const bool experiment = step.kind == "experiment", streaming = step.kind == "streaming";
  step.experiment = experiment ? s.required_string("experiment") : "";
  step.of = experiment ? s.required_string("of") : "";
  if (experiment) expect_known(s, "of", step.of, {"trained", "given", "seeds"});
  step.id = step.of == "seeds" ? s.required_string("id") : s.string("id", "");
  step.seeds = s.integer("seeds", 0, 0);
  step.models = experiment ? s.strings("models", {}) : Words{};
  step.beside = experiment ? s.strings("beside", {}) : Words{};
  if (!step.beside.empty() && step.models.empty())
    fail("config", "{} needs 'models' because it has 'beside'", step.where);
  step.name = streaming ? s.required_string("name") : "";
  step.model = streaming ? s.required_string("model") : "";
  step.cache = streaming ? s.required_string("cache") : "";
  step.kinds = streaming ? known_words(s, "kinds", {"heldout", "tasks"}) : Words{};
  step.needs = s.string("needs", "");
  step.piece = s.string("piece", "");
  step.settings = s.strings("settings", {});
  step.settings_cpu = s.strings("settings_cpu", {});
  step.settings_cuda = s.strings("settings_cuda", {});
  step.loops = read_loops(s);
  return step;
}

MeasureSpec read_measure(ConfigSection s) {
  MeasureSpec m;
  m.where = place(s);
  m.name = s.required_string("name");
  m.step = s.string("step", "");
  m.kind = s.string("kind", m.kind);
  expect_known(s, "kind", m.kind, measure_kinds());
  m.path = m.kind == "numbers" ? s.required_string("path") : s.string("path", "");
  m.minus = s.string("minus", "");
  m.per = s.string("per", "");
  if (!m.minus.empty() && !m.per.empty()) fail("config", "{}: expected 'minus' or 'per', found both", m.where);
  m.factor = s.number("factor", 1);
  m.map = s.string("map", "");
  if (!m.map.empty()) expect_known(s, "map", m.map, number_maps());
  m.of_head = s.string("of_head", "");
  if (!m.of_head.empty()) expect_known(s, "of_head", m.of_head, head_measures());
  m.most = s.string("most", "");
  m.layers = s.numbers("layers", {});
  if (!m.layers.empty() && m.layers.size() != 2)
    fail("config", "{}: layers: expected two numbers, the first and the last layer of 24, found {} numbers",
         s.where("layers"), m.layers.size());
  m.unit = s.string("unit", "");
  m.items = s.string("items", "");
  return m;
}

ClaimSpec read_claim(ConfigSection s) {
  ClaimSpec c;
  c.where = place(s);
  c.from_published = s.string("from_published", "");
  if (!c.from_published.empty()) expect_known(s, "from_published", c.from_published, {"order", "value"});
  const bool published = !c.from_published.empty();
  c.text = s.required_string("text");
  c.paper = published ? s.string("paper", "") : s.required_string("paper");
  c.measure = published ? s.string("measure", "") : s.required_string("measure");
  c.family = s.string("family", "");
  c.form = s.choice("form", c.form, {"difference", "ratio", "value"});
  c.from = s.string("from", "");
  c.under_measure = s.string("under_measure", "");
  c.pace = s.string("pace", "");
  c.over = s.string("over", "");
  c.under = s.string("under", "");
  if (!published && c.form != "value" && c.under.empty() && c.under_measure.empty())
    fail("config", "{}: form {}: expected 'under' or 'under_measure', found neither", c.where, c.form);
  c.unit = s.string("unit", "");
  c.units = s.string("units", c.units);
  c.factor = s.number("factor", 1);
  c.variance = s.boolean("variance", false);
  c.side = published ? s.string("side", "") : s.required_string("side");
  if (!published) {
    expect_known(s, "side", c.side, {"below", "above", "at most", "at least", "within", "equal", "printed", "none"});
    const bool bounded = c.side != "none" && c.side != "printed";
    if (bounded && !s.has("bound")) fail("config", "{} needs 'bound' because side is '{}'", c.where, c.side);
  }
  c.bound = s.number("bound", 0);
  c.within = s.number("within", 0, 0);
  if ((c.side == "within" || c.from_published == "value") && !s.has("within"))
    fail("config", "{} needs 'within', the relative tolerance around the bound", c.where);
  c.printed = c.side == "printed" ? s.required_string("printed") : "";
  c.or_measure = s.string("or_measure", "");
  c.less = s.string("less", "");
  c.scales = known_words(s, "scales", names_of(scales()));
  c.otherwise = c.scales.empty() ? s.string("otherwise", "") : s.required_string("otherwise");
  c.comparable = s.strings("comparable", {});
  if (!c.comparable.empty() && c.otherwise.empty())
    fail("config", "{} needs 'otherwise' because it has 'comparable'", c.where);
  c.otherwise_input = s.string("without", "not measured");
  c.when_any = s.strings("when_any", {});
  c.when_none = s.strings("when_none", {});
  c.needs = s.string("needs", "");
  c.needs_models = s.strings("needs_models", {});
  c.needs_side = s.choice("needs_side", "above", {"above", "below"});
  c.needs_bound = s.number("needs_bound", 0);
  c.reference = s.string("reference", "");
  c.rows = s.strings("rows", {});
  c.columns = s.strings("columns", {});
  c.loops = read_loops(s);
  return c;
}

TableSpec read_table(ConfigSection s) {
  TableSpec t;
  t.where = place(s);
  t.title = s.required_string("title");
  t.over = s.string("over", "");
  t.columns = s.strings("columns", {});
  t.names = s.strings("names", {});
  t.cells = s.strings("cells", {});
  if (t.cells.empty() || t.columns.size() != t.names.size() + t.cells.size())
    fail("config", "{}: expected one column per name and cell, found {} columns for {} names and {} cells", t.where,
         t.columns.size(), t.names.size(), t.cells.size());
  t.loops = read_loops(s);
  return t;
}

FigureSpec read_figure(ConfigSection s) {
  FigureSpec f;
  f.where = place(s);
  f.table = s.required_string("table");
  f.file = s.required_string("file");
  f.title = s.required_string("title");
  f.values = s.string("values", "");
  f.x = s.strings("x", {});
  f.y = s.strings("y", {});
  f.x_label = s.required_string("x_label");
  f.y_label = s.string("y_label", "");
  if (f.values.empty() == f.x.empty() || f.x.size() != f.y.size())
    fail("config", "{}: expected 'values', or 'x' and 'y' with the same number of measures, found {} and {}", f.where,
         f.x.size(), f.y.size());
  return f;
}

CriterionSpec read_criterion(ConfigSection s) {
  return {place(s), s.required_string("name"), s.required_string("measure"),
          s.choice("better", "lower", {"lower", "higher"})};
}

OrderSpec read_order(ConfigSection s) {
  OrderSpec o;
  o.where = place(s);
  o.title = s.required_string("title");
  o.column = s.required_string("column");
  o.measure = s.string("measure", "");
  const std::string first = s.required_string("first");
  expect_known(s, "first", first, {"lowest", "highest"});
  o.lowest_first = first == "lowest";
  o.groups = s.strings("groups", {});
  return o;
}

void read_published(Config& config, RecipeFile& data) {
  ConfigSection s = config.section("published");
  data.published.title = s.string("title", "");
  for (ConfigSection column : config.sections("column")) {
    PublishedColumn c;
    c.title = column.required_string("title");
    c.words = column.string("words", c.title);
    c.measure = column.string("measure", "");
    c.unit = column.string("unit", "");
    c.factor = column.number("factor", 1);
    c.in = column.string("in", "");
    data.published.columns.push_back(c.title);
    data.columns.push_back(std::move(c));
  }
  for (ConfigSection row : config.sections("row")) {
    PublishedRowSpec r;
    r.row.name = row.required_string("name");
    r.row.values = row.numbers("values", {});
    if (r.row.values.size() != data.columns.size())
      fail("config", "{}: values: expected one value for each [[column]] ({}), found {}", row.where("values"),
           data.columns.size(), r.row.values.size());
    r.row.model = row.string("model", "");
    r.model_below_paper = row.string("model_below_paper", r.row.model);
    data.published.rows.push_back(r.row);
    data.rows.push_back(std::move(r));
  }
}

void check_claim(const RecipeFile& data, const ClaimSpec& c) {
  const Words rows = names_of(data.published.rows);
  for (const std::string& row : c.rows) expect_known(c.where + " rows", row, rows);
  for (const std::string& column : c.columns) expect_known(c.where + " columns", column, data.published.columns);
  if (c.from_published == "order") expect_known(c.where + " reference", c.reference, rows);
}

Words titles_of(const RecipeFile& data) {
  Words out;
  for (const TableSpec& table : data.tables) out.push_back(table.title);
  return out;
}

void check_order(const RecipeFile& data, const OrderSpec& o) {
  expect_known(o.where + " column", o.column, data.published.columns);
  if (!o.measure.empty()) find_measure(data, o.measure, o.where);
}

// Checks everything that can be checked without results, for every scale, so that mistakes are reported when the file
// is read.
void check(const RecipeFile& data) {
  for (const ClaimSpec& c : data.claims) check_claim(data, c);
  for (const FigureSpec& f : data.figures)
    expect_known(f.where + " table", f.table, titles_of(data), "the title of a table");
  for (const OrderSpec& o : data.orders) check_order(data, o);
  for (const Scale& scale : scales()) {
    const Conditions conditions{scale, {}, {}, {{"any", ""}}, 1, "cpu"};
    plan_of(data, conditions);
    judge_of(data, conditions, Results(1, {}));
    tables_of(data, conditions, Results(1, {}));
    choice_of(data, conditions, Results(1, {}));
    for (const TableSpec& table : data.tables) figures_of(data, conditions, Results(1, {}), table);
  }
}

template <typename T>
void append_list(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

void append_new(Words& to, const Words& more) {
  for (const std::string& word : more) {
    if (!contains(to, word)) to.push_back(word);
  }
}

// Implements `with = ["fig2a"]`: appends the models, steps, measures, claims, tables, figures, criteria, pictures and
// notes of another recipe to this recipe.
void append(RecipeFile& data, const RecipeFile& other) {
  append_new(data.models, other.models);
  append_list(data.own_models, other.own_models);
  append_list(data.steps, other.steps);
  append_list(data.measures, other.measures);
  append_list(data.claims, other.claims);
  append_list(data.tables, other.tables);
  append_list(data.orders, other.orders);
  append_list(data.figures, other.figures);
  append_list(data.criteria, other.criteria);
  if (data.choice.models.empty()) data.choice = other.choice;
  append_list(data.pictures, other.pictures);
  append_new(data.notes, other.notes);
  if (data.rows.empty()) {
    data.published = other.published;
    data.columns = other.columns;
    data.rows = other.rows;
  }
  for (const auto& [name, values] : other.variables) data.variables.emplace(name, values);
}

std::string integer_or_number(double x) {
  return x == std::floor(x) && std::abs(x) < 1e15 ? fmt::format("{}", static_cast<int64_t>(x)) : fmt::format("{:g}", x);
}

}  // namespace

std::string fill(const std::string& text, const Variables& variables, const std::string& where) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t end = text[i] == '{' ? text.find('}', i) : std::string::npos;
    const std::string name = end == std::string::npos ? "" : text.substr(i + 1, end - i - 1);
    if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") != std::string::npos) {
      out += text[i];
      continue;
    }
    const auto found = variables.find(name);
    if (found == variables.end()) {
      Words names;
      for (const auto& [key, value] : variables) names.push_back(key);
      fail("config", "{}: expected one of the variables ({}), found '{{{}}}'", where, fmt::join(names, ", "), name);
    }
    out += found->second;
    i = end;
  }
  return out;
}

Words fill(const Words& texts, const Variables& variables, const std::string& where) {
  Words out;
  for (const std::string& text : texts) out.push_back(fill(text, variables, where));
  return out;
}

std::vector<Variables> rounds(const Loops& loops, const Variables& variables, const Conditions& conditions,
                              const std::string& where) {
  std::vector<Variables> all{variables};
  if (!loops.together.empty()) {
    all.clear();
    for (size_t n = 0; n < loops.together.front().second.size(); ++n) {
      all.push_back(variables);
      for (const auto& [name, values] : loops.together) all.back()[name] = fill(values[n], variables, where);
    }
  }
  for (const auto& [name, values] : loops.product) {
    Words list = values;
    if (list == Words{"@domains"}) {
      list.clear();
      for (const auto& [domain, folder] : conditions.domains) list.push_back(domain);
      if (list.empty()) list = {"any " + name};
    }
    std::vector<Variables> more;
    for (const Variables& before : all) {
      for (const std::string& value : list) {
        more.push_back(before);
        more.back()[name] = fill(value, before, where);
      }
    }
    all = std::move(more);
  }
  return all;
}

Variables variables_of(const RecipeFile& data, const Conditions& conditions) {
  const Words names = names_of(scales());
  const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), conditions.scale.name) - names.begin());
  Variables out{{"scale", conditions.scale.name}, {"device", conditions.device}};
  for (const auto& [name, values] : data.variables) out[name] = values[at];
  return out;
}

Words model_names(const RecipeFile& data, const Conditions& conditions, const Variables& variables) {
  Words names;
  for (const ModelSpec& m : data.own_models) {
    for (const Variables& v : rounds(m.loops, variables, conditions, m.where))
      names.push_back(fill(m.name, v, m.where));
  }
  return names;
}

RecipeFile read_recipe(const std::string& text, const std::string& file) {
  Config config = Config::parse(text, file);
  ConfigSection s = config.section("recipe");
  RecipeFile data;
  data.file = file;
  const size_t slash = file.rfind('/'), begin = slash == std::string::npos ? 0 : slash + 1;
  data.name = file.substr(begin, file.rfind('.') - begin);
  const bool shared = file == kSharedFile;
  if (!shared) {
    data.title = s.required_string("title");
    data.source = s.required_string("source");
  }
  data.models = s.strings("models", {});
  data.budget = s.string("budget", "ablation");
  expect_known(s, "budget", data.budget, {"main", "ablation", "large"});
  data.notes = s.strings("notes", {});
  for (const std::string& scale : names_of(scales())) {
    data.at_scale[scale] = read_overrides(s, scale);
    data.means[scale] = s.string("means_" + scale, "");
  }
  const Words with = s.strings("with", {});
  data.pictures = known_words(s, "pictures", picture_names());
  ConfigSection variables = config.section("variables");
  for (const std::string& key : variables.keys()) {
    const std::vector<double> values = variables.numbers(key, {});
    if (values.size() != scales().size())
      fail("config", "{}: {}: expected one number for each scale ({}), found {}", variables.where(key), key,
           fmt::join(names_of(scales()), ", "), values.size());
    for (const double value : values) data.variables[key].push_back(integer_or_number(value));
  }
  for (ConfigSection& model : config.sections("model")) data.own_models.push_back(read_model(model));
  for (ConfigSection& step : config.sections("step")) data.steps.push_back(read_step(step));
  for (ConfigSection& measure : config.sections("measure")) data.measures.push_back(read_measure(measure));
  for (ConfigSection& claim : config.sections("claim")) data.claims.push_back(read_claim(claim));
  for (ConfigSection& table : config.sections("table")) data.tables.push_back(read_table(table));
  for (ConfigSection& figure : config.sections("figure")) data.figures.push_back(read_figure(figure));
  for (ConfigSection& criterion : config.sections("criterion")) data.criteria.push_back(read_criterion(criterion));
  ConfigSection choice = config.section("choice");
  data.choice = {choice.string("title", ""), choice.string("asked", ""), choice.string("against", ""),
                 choice.strings("models", {})};
  for (ConfigSection& order : config.sections("order")) data.orders.push_back(read_order(order));
  read_published(config, data);
  for (MeasureSpec& m : data.measures) {
    if (m.kind != "nearest_row") continue;
    if (data.rows.empty()) fail("config", "{}: this kind of measure needs a published [[row]]", m.where);
    m.row = data.rows.front().row.values;
  }
  config.check_all_used();
  if (data.models.empty()) data.models = names_of(data.own_models);
  if (shared) return data;
  for (const std::string& other : with)
    append(data, read_recipe(embedded_config("repro/" + other + ".toml"), "repro/" + other + ".toml"));
  static const RecipeFile common = read_recipe(embedded_config(kSharedFile), kSharedFile);
  append_list(data.own_models, common.own_models);
  append_list(data.measures, common.measures);
  for (const auto& [name, values] : common.variables) data.variables.emplace(name, values);
  check(data);
  return data;
}

Recipe recipe_of(const RecipeFile& data) {
  Recipe recipe{data.name,
                data.title,
                data.source,
                [data](const Conditions& c) { return plan_of(data, c); },
                [data](const Conditions& c, const Results& results) { return judge_of(data, c, results); },
                data.published,
                data.notes};
  recipe.means = data.means;
  if (!data.tables.empty() || !data.orders.empty())
    recipe.tables = [data](const Conditions& c, const Results& results) { return tables_of(data, c, results); };
  if (!data.choice.models.empty())
    recipe.choice = [data](const Conditions& c, const Results& results) { return choice_of(data, c, results); };
  if (!data.pictures.empty()) {
    recipe.pictures = [names = data.pictures, published = data.published](const Results& results) {
      std::string out;
      for (const std::string& name : names) out += draw_picture(name, results, published);
      return out;
    };
  }
  return recipe;
}

}  // namespace lazy::repro
