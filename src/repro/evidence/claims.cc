#include "repro/evidence/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/config.h"
#include "core/error.h"
#include "core/json_field.h"
#include "core/known_names.h"
#include "core/text.h"
#include "repro/configs.h"
#include "repro/evidence/record.h"

namespace lazy::repro {
namespace fs = std::filesystem;

namespace {

constexpr const char* kClaimsFile = "evidence-claims.toml";

const EvidenceBlock& known_block(ConfigSection& s, const std::string& key, const std::string& name,
                                 const Protocol& protocol) {
  expect_known(s, key, name, names_of(protocol.blocks), "a block of the protocol");
  return protocol.block(name);
}

// Reads a list of cell names and checks that the block contains each of these cells.
Words cells_of(ConfigSection& s, const std::string& key, const std::string& block, const Protocol& protocol) {
  Words out = s.strings(key, {});
  for (const std::string& cell : out)
    expect_known(s, key, cell, protocol.block(block).cells, "a cell of block " + block);
  return out;
}

std::string optional_block(ConfigSection& s, const std::string& key, const std::string& fallback,
                           const Protocol& protocol) {
  const std::string name = s.string(key, fallback);
  if (s.has(key)) known_block(s, key, name, protocol);
  return name;
}

void need(const Words& list, const std::string& file, const std::string& section, const char* key) {
  if (list.empty()) fail("config", "{}: [{}] needs '{}'", file, section, key);
}

void need_pairs(ConfigSection& s, const char* key, const Words& over, const Words& under) {
  if (over.size() != under.size())
    fail("config", "{}: {}: expected the same number of cells as 'over' ({}), found {}", s.where(key), key, over.size(),
         under.size());
}

EvidenceClaim read_claim(Config& config, const std::string& name, const FactorialDesign& design,
                         const Protocol& protocol) {
  ConfigSection s = config.section(name);
  EvidenceClaim c;
  c.name = name;
  c.text = s.required_string("text");
  c.rule = s.required_string("rule");
  c.paper = s.string("paper", "");
  c.differs = s.string("differs", "");
  c.primary = s.boolean("primary", false);
  c.block = s.required_string("block");
  known_block(s, "block", c.block, protocol);
  c.under_block = optional_block(s, "under_block", c.block, protocol);
  c.form = s.required_string("form");
  expect_known(s, "form", c.form, {"ratio", "difference", "effect", "bound"}, "a form");
  c.side = s.required_string("side");
  expect_known(s, "side", c.side, {"below", "above"}, "a side");
  if (!s.has("bound")) fail("config", "{}: [{}] needs 'bound'", config.name(), name);
  c.bound = s.number("bound", 0);
  c.measure = {s.required_string("measure"), s.string("from", "")};
  c.under_measure = s.has("under_measure") ? RecordMeasure{s.string("under_measure", ""), ""} : c.measure;
  c.equal_within = s.number("equal_within", 0, 0);
  c.factor = s.number("factor", 1);
  c.over = cells_of(s, "over", c.block, protocol);
  c.under = cells_of(s, "under", c.under_block, protocol);
  c.factors = s.strings("factors", {});
  for (const std::string& factor : c.factors)
    expect_known(s, "factors", factor, design.factors, "a factor of [design]");
  c.needs_measure = s.string("needs_measure", "");
  c.needs_cells = cells_of(s, "needs_cells", c.block, protocol);
  c.sign_block = optional_block(s, "sign_block", "", protocol);
  if (!c.sign_block.empty()) {
    c.sign_over = cells_of(s, "sign_over", c.sign_block, protocol);
    c.sign_under = cells_of(s, "sign_under", c.sign_block, protocol);
    need(c.sign_over, config.name(), name, "sign_over");
    need_pairs(s, "sign_under", c.sign_over, c.sign_under);
  }
  c.slope_block = optional_block(s, "slope_block", "", protocol);
  c.slope_measure = s.string("slope_measure", "");
  if (!c.slope_block.empty()) {
    c.slope_cells = cells_of(s, "slope_cells", c.slope_block, protocol);
    need(c.slope_cells, config.name(), name, "slope_cells");
    if (c.slope_measure.empty()) fail("config", "{}: [{}] needs 'slope_measure'", config.name(), name);
  }
  if (!c.needs_measure.empty()) need(c.needs_cells, config.name(), name, "needs_cells");
  if (c.form == "effect") need(c.factors, config.name(), name, "factors");
  if (c.form == "effect" && c.block != design.block)
    fail("config", "{}: block: expected the block of [design] ({}), found {}", s.where("block"), design.block, c.block);
  if (c.form != "effect") need(c.over, config.name(), name, "over");
  if (c.form == "ratio" || c.form == "difference") {
    need(c.under, config.name(), name, "under");
    need_pairs(s, "under", c.over, c.under);
  }
  return c;
}

FactorialDesign read_design(Config& config, const Protocol& protocol) {
  ConfigSection s = config.section("design"), cells = config.section("design-cells");
  FactorialDesign d;
  d.block = s.required_string("block");
  const EvidenceBlock& block = known_block(s, "block", d.block, protocol);
  d.factors = s.strings("factors", {});
  d.low = s.strings("low", {});
  d.high = s.strings("high", {});
  need(d.factors, config.name(), "design", "factors");
  for (const auto& [key, levels] : {std::pair{"low", &d.low}, std::pair{"high", &d.high}}) {
    if (levels->size() != d.factors.size())
      fail("config", "{}: [design] {}: expected {} levels, found {}", config.name(), key, d.factors.size(),
           levels->size());
  }
  for (const std::string& cell : cells.keys()) {
    expect_known(cells, cell, cell, block.cells, "a cell of block " + d.block);
    const Words levels = cells.strings(cell, {});
    if (levels.size() != d.factors.size())
      fail("config", "{}: {}: expected {} levels, found {}", cells.where(cell), cell, d.factors.size(), levels.size());
    for (size_t i = 0; i < levels.size(); ++i) {
      expect_known(cells, cell, levels[i], {d.low[i], d.high[i]}, "a level of " + d.factors[i]);
      d.signs[cell].push_back(levels[i] == d.low[i] ? -1 : 1);
    }
    for (const auto& [other, signs] : d.signs) {
      if (other != cell && signs == d.signs[cell])
        fail("config", "{}: {}: expected a unique combination of levels, found the levels of {}", cells.where(cell),
             cell, other);
    }
  }
  if (d.signs.size() != size_t{1} << d.factors.size())
    fail("config", "{}: [design-cells]: expected {} cells, found {}", config.name(), size_t{1} << d.factors.size(),
         d.signs.size());
  return d;
}

double value_of(const Json& record, const RecordMeasure& m, const std::string& file) {
  return number_at(record, m.path, file) - (m.from.empty() ? 0 : number_at(record, m.from, file));
}

struct Side {
  std::string block;
  Words cells;
  RecordMeasure measure;
};

// The record of a run (nullptr if the run has no record) and the path of the record's file.
struct Found {
  const Json* record;
  std::string file;
};
Found find_record(const std::string& block, const std::string& cell, int64_t seed, const EvidenceRecords& records) {
  EvidenceRun run;
  run.block = block, run.cell = cell, run.seed = seed;
  return {records.find(run), record_path(records.folder, run).string()};
}

// Returns the values of all cells on one side of a claim for one seed, or nullopt if a cell has no record.
std::optional<std::vector<double>> values_of(const Side& side, int64_t seed, const EvidenceRecords& records) {
  std::vector<double> out;
  for (const std::string& cell : side.cells) {
    const auto [record, file] = find_record(side.block, cell, seed, records);
    if (!record) return std::nullopt;
    out.push_back(value_of(*record, side.measure, file));
  }
  return out;
}

// Calls combine(values of every side) for each seed for which all records exist, and returns the results.
template <class Combine>
std::vector<double> each_seed(const std::vector<Side>& sides, const Protocol& protocol, const EvidenceRecords& records,
                              Combine&& combine) {
  std::vector<double> out;
  for (const int64_t seed : protocol.block(sides.front().block).seeds) {
    std::vector<std::vector<double>> values;
    for (const Side& side : sides) {
      if (const auto found = values_of(side, seed, records)) values.push_back(*found);
    }
    if (values.size() == sides.size()) out.push_back(combine(values));
  }
  return out;
}

std::vector<double> seed_values(const EvidenceClaim& c, const FactorialDesign& design, const Protocol& protocol,
                                const EvidenceRecords& records) {
  if (c.form == "effect") return contrast(design, c.factors, c.measure, protocol, records);
  const Side over{c.block, c.over, c.measure}, under{c.under_block, c.under, c.under_measure};
  if (c.form == "bound") return each_seed({over}, protocol, records, [](const auto& v) { return mean_of(v[0]); });
  return each_seed({over, under}, protocol, records, [&](const auto& v) {
    const double a = mean_of(v[0]), b = mean_of(v[1]);
    return c.form == "ratio" ? a / b : a - c.factor * b;
  });
}

Region region_of(const EvidenceClaim& c) { return c.side == "below" ? below(c.bound) : above(c.bound); }

bool right_side(const EvidenceClaim& c, double value) { return c.side == "below" ? value < c.bound : value > c.bound; }

// A condition of a claim in addition to its confidence interval. `holds` is nullopt while records are missing.
struct Condition {
  std::optional<bool> holds = true;
  std::string note;
};

// The condition holds if every paired difference in sign_block has the sign that the claim predicts.
Condition sign_condition(const EvidenceClaim& c, const Protocol& protocol, const EvidenceRecords& records) {
  if (c.sign_block.empty()) return {};
  const auto differences = each_seed({{c.sign_block, c.sign_over, c.measure}, {c.sign_block, c.sign_under, c.measure}},
                                     protocol, records, [](const auto& v) { return mean_of(v[0]) - mean_of(v[1]); });
  const size_t all = protocol.block(c.sign_block).seeds.size();
  const auto same = std::count_if(differences.begin(), differences.end(),
                                  [&](double d) { return c.side == "below" ? d < 0 : d > 0; });
  Condition out{
      {}, fmt::format("same sign in {} of {} pairs of {} ({} recorded)", same, all, c.sign_block, differences.size())};
  if (static_cast<size_t>(same) < differences.size())
    out.holds = false;
  else if (differences.size() == all)
    out.holds = true;
  return out;
}

// Returns the least-squares slope of a measured value against the number of training tokens, over the snapshots of a
// run.
double slope(const Json& record, const std::string& path, const std::string& file) {
  const Json& snapshots = record.contains("snapshots") ? record.at("snapshots") : Json::array();
  if (snapshots.size() < 2) fail("repro", "{}: snapshots: expected at least 2, found {}", file, snapshots.size());
  std::vector<double> x, y;
  for (const Json& s : snapshots) {
    x.push_back(number_at(s, "tokens", file + ": snapshots"));
    y.push_back(number_at(s, path, file + ": snapshots"));
  }
  double up = 0, down = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    up += (x[i] - mean_of(x)) * (y[i] - mean_of(y));
    down += (x[i] - mean_of(x)) * (x[i] - mean_of(x));
  }
  return up / down;
}

Condition slope_condition(const EvidenceClaim& c, const Protocol& protocol, const EvidenceRecords& records) {
  if (c.slope_block.empty()) return {};
  size_t all = 0, found = 0, upward = 0;
  for (const int64_t seed : protocol.block(c.slope_block).seeds) {
    for (const std::string& cell : c.slope_cells) {
      ++all;
      const auto [record, file] = find_record(c.slope_block, cell, seed, records);
      if (!record) continue;
      ++found;
      if (slope(*record, c.slope_measure, file) > 0) ++upward;
    }
  }
  Condition out{{},
                fmt::format("upward slope in {} of {} runs of {} ({} recorded)", upward, all, c.slope_block, found)};
  if (upward > 0)
    out.holds = false;
  else if (found == all)
    out.holds = true;
  return out;
}

// Whether the baseline cells have an excess sink that could be removed: the upper end of its interval must be above 0.
bool testable(const EvidenceClaim& c, const Protocol& protocol, const EvidenceRecords& records) {
  if (c.needs_measure.empty()) return true;
  const UnitEstimate e = over_units(each_seed({{c.block, c.needs_cells, {c.needs_measure, ""}}}, protocol, records,
                                              [](const auto& v) { return mean_of(v[0]); }),
                                    above(0));
  return !e.interval || e.interval->high > 0;
}

// Sets the verdict and its note after the p-value has been adjusted.
void conclude(const EvidenceClaim& c, const EvidenceClaims& claims, const Protocol& protocol,
              const EvidenceRecords& records, ClaimVerdict& v) {
  const size_t seeds = v.effect.by_unit.size();
  const BlockCondition trained =
      block_condition(protocol, protocol.block(c.block), [&](const EvidenceRun& run) { return records.find(run); });
  const Condition sign = sign_condition(c, protocol, records), slopes = slope_condition(c, protocol, records);
  v.note = fmt::format("{}, {} tokens, {}", claims.parameters,
                       human_count(static_cast<double>(protocol.block(c.block).tokens)),
                       seeds == 1 ? "one seed" : fmt::format("{} seeds", seeds));
  if (!testable(c, protocol, records)) {
    v.verdict = Verdict::not_testable;
    add_reason(v.note, "the baseline shows no excess sink above zero");
  } else if (seeds == 0 && trained.decided && !trained.unmet.empty()) {
    v.verdict = Verdict::not_testable;
    add_reason(v.note, trained.unmet);
  } else if (seeds == 0) {
    const auto any = std::any_of(records.json.begin(), records.json.end(),
                                 [&](const auto& r) { return r.first.starts_with(c.block + "."); });
    v.verdict = Verdict::missing;
    add_reason(v.note, any ? "no seed has a record for every cell yet" : "no runs yet");
  } else {
    // A refutation does not need an adjusted p-value: in the protocol, the interval alone refutes a claim.
    const Rule rule{.region = region_of(c), .equal_within = c.equal_within, .corrected_refutation = false};
    const double p = v.adjusted.value_or(1);
    v.verdict = decide(v.effect, rule, p).verdict;
    if (v.verdict == Verdict::open && decide(v.effect, rule, 0).verdict == Verdict::reproduced)
      add_reason(v.note, "the adjusted p is not below 0.05");
    if (v.verdict == Verdict::reproduced && !(sign.holds == true && slopes.holds == true)) v.verdict = Verdict::open;
    if (c.form == "bound" && v.effect.interval) {
      const auto& values = v.effect.by_unit;
      add_reason(
          v.note,
          fmt::format("on the rule's side in {} of {} seeds",
                      std::count_if(values.begin(), values.end(), [&](double x) { return right_side(c, x); }), seeds));
    }
  }
  add_reason(v.note, sign.note);
  add_reason(v.note, slopes.note);
}

}  // namespace

const Json* EvidenceRecords::find(const EvidenceRun& run) const {
  const auto found = json.find(run.id());
  return found == json.end() ? nullptr : &found->second;
}

EvidenceRecords read_records(const fs::path& folder, const Protocol& protocol) {
  EvidenceRecords out;
  out.folder = folder;
  for (const EvidenceRun& run : protocol.runs()) {
    Json record = read_record(folder, protocol, run, "");
    if (!record.is_null()) out.json[run.id()] = std::move(record);
  }
  return out;
}

namespace {

OrderedJsonField field_at(const Json& record, const std::string& path, const std::string& file) {
  OrderedJsonField field("repro", record, file);
  for (const std::string& key : split(path, '.')) field = field.find(key);
  return field;
}

// Returns sum and count of a number, or of all numbers in a nested list.
std::pair<double, size_t> sum_and_count(const OrderedJsonField& field) {
  if (!field.present() || !field.json().is_array()) {
    const double value = field.number();
    if (!std::isfinite(value)) field.wrong("a finite number");
    return {value, 1};
  }
  if (field.size() == 0) field.wrong("a number or a list of numbers");
  std::pair<double, size_t> all{0, 0};
  for (size_t i = 0; i < field.size(); ++i) {
    const auto part = sum_and_count(field.at(i));
    all.first += part.first, all.second += part.second;
  }
  return all;
}

}  // namespace

std::vector<double> numbers_at(const Json& record, const std::string& path, const std::string& file) {
  const OrderedJsonField field = field_at(record, path, file);
  if (!field.present() || !field.json().is_array()) field.wrong("a list of numbers");
  std::vector<double> out;
  for (size_t i = 0; i < field.size(); ++i) {
    const auto [sum, count] = sum_and_count(field.at(i));
    out.push_back(sum / static_cast<double>(count));
  }
  return out;
}

double number_at(const Json& record, const std::string& path, const std::string& file) {
  const auto [sum, count] = sum_and_count(field_at(record, path, file));
  return sum / static_cast<double>(count);
}

EvidenceClaims read_claims(const std::string& text, const std::string& name, const Protocol& protocol) {
  Config config = Config::parse(text, name);
  ConfigSection s = config.section("report");
  EvidenceClaims out;
  out.parameters = s.required_string("parameters");
  out.differs = s.strings("differs", {});
  out.pages = s.strings("pages", {});
  out.design = read_design(config, protocol);
  for (const std::string& claim : s.strings("claims", {}))
    out.claims.push_back(read_claim(config, claim, out.design, protocol));
  ConfigSection effects = config.section("effects");
  for (const std::string& key : effects.keys()) {
    const Words paths = effects.strings(key, {});
    if (paths.empty() || paths.size() > 2)
      fail("config", "{}: {}: expected one or two paths, found {}", effects.where(key), key, paths.size());
    out.effects.emplace_back(key, RecordMeasure{paths[0], paths.size() > 1 ? paths[1] : ""});
  }
  for (ConfigSection& h : config.sections("head-start")) {
    HeadStart& to = out.head_starts.emplace_back();
    to.block = h.required_string("block");
    known_block(h, "block", to.block, protocol);
    to.tokens = h.numbers("tokens", {});
    to.over = cells_of(h, "over", to.block, protocol);
    to.under = cells_of(h, "under", to.block, protocol);
    need_pairs(h, "under", to.over, to.under);
  }
  if (ConfigSection l = config.section("by-layer"); l.has("block")) {
    out.by_layer.block = l.required_string("block");
    known_block(l, "block", out.by_layer.block, protocol);
    out.by_layer.over = cells_of(l, "over", out.by_layer.block, protocol);
    out.by_layer.under = cells_of(l, "under", out.by_layer.block, protocol);
    need(out.by_layer.over, config.name(), "by-layer", "over");
    need(out.by_layer.under, config.name(), "by-layer", "under");
    ConfigSection measures = config.section("by-layer-measures");
    for (const std::string& key : measures.keys())
      out.by_layer.measures.emplace_back(key, measures.required_string(key));
  }
  config.check_all_used();
  return out;
}

EvidenceClaims embedded_claims(const Protocol& protocol) {
  return read_claims(embedded_config(kClaimsFile), kClaimsFile, protocol);
}

int effect_sign(const FactorialDesign& design, const std::vector<int>& signs, const Words& factors) {
  int sign = 1;
  for (size_t i = 0; i < signs.size(); ++i) {
    if (contains(factors, design.factors[i])) sign *= signs[i];
  }
  return sign;
}

std::vector<double> contrast(const FactorialDesign& design, const Words& factors, const RecordMeasure& measure,
                             const Protocol& protocol, const EvidenceRecords& records) {
  Side side{design.block, {}, measure};
  std::vector<double> weights;
  for (const auto& [cell, signs] : design.signs) {
    side.cells.push_back(cell);
    weights.push_back(2.0 * effect_sign(design, signs, factors) / static_cast<double>(design.signs.size()));
  }
  return each_seed({side}, protocol, records, [&](const auto& v) {
    return std::inner_product(weights.begin(), weights.end(), v[0].begin(), 0.0);
  });
}

std::map<int64_t, double> head_start(const HeadStart& h, double tokens, const Protocol& protocol,
                                     const EvidenceRecords& records) {
  std::map<int64_t, double> out;
  for (const int64_t seed : protocol.block(h.block).seeds) {
    double sum = 0;
    bool complete = !h.over.empty();
    for (const auto& [cells, sign] : {std::pair{&h.over, 1.0}, std::pair{&h.under, -1.0}}) {
      for (const std::string& cell : *cells) {
        const auto [record, file] = find_record(h.block, cell, seed, records);
        if (!record) {
          complete = false;
          continue;
        }
        const OrderedJsonField top("repro", *record, file);
        const OrderedJsonField curve = top["training"]["validation"];
        const std::vector<double> x = curve["tokens"].numbers(), y = curve["loss"].numbers();
        if (x.empty() || x.size() != y.size())
          curve.wrong("at least one entry, and one loss for each number of tokens");
        // Interpolates linearly between validations. Outside of their range, the first or last value is used.
        const auto above = static_cast<size_t>(std::lower_bound(x.begin(), x.end(), tokens) - x.begin());
        const size_t to = std::min(above, x.size() - 1), from = to == 0 || above == x.size() ? to : to - 1;
        const double share = from == to ? 0 : (tokens - x[from]) / (x[to] - x[from]);
        sum += sign * (y[from] + share * (y[to] - y[from]));
      }
    }
    if (complete) out[seed] = sum / static_cast<double>(h.over.size());
  }
  return out;
}

std::vector<ClaimVerdict> judge_claims(const EvidenceClaims& claims, const Protocol& protocol,
                                       const EvidenceRecords& records) {
  std::vector<ClaimVerdict> out;
  std::vector<double> p;
  for (const EvidenceClaim& c : claims.claims) {
    ClaimVerdict v;
    v.effect = over_units(seed_values(c, claims.design, protocol, records), region_of(c));
    if (c.primary) p.push_back(v.effect.p.value_or(1));
    out.push_back(std::move(v));
  }
  const std::vector<double> adjusted = holm(p);
  size_t primary = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const EvidenceClaim& c = claims.claims[i];
    if (out[i].effect.p) out[i].adjusted = c.primary ? adjusted[primary] : *out[i].effect.p;
    if (c.primary) ++primary;
    conclude(c, claims, protocol, records, out[i]);
  }
  return out;
}

}  // namespace lazy::repro
