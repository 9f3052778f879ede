#include "repro/evidence/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/known_names.h"
#include "report/dot_plot.h"
#include "report/plot.h"
#include "report/style.h"
#include "report/svg.h"
#include "repro/judge.h"

namespace lazy::repro {

namespace {

constexpr double kWidth = 720, kHeight = 360;
constexpr size_t kNeutral = 6;  // index of the gray series color

// Returns the name that [effects] gives this quantity, or else the path of the quantity in the record.
std::string measure_name(const RecordMeasure& m, const EvidenceClaims& claims) {
  for (const auto& [name, effect] : claims.effects)
    if (effect.path == m.path && effect.from == m.from) return name;
  const auto plain = [](std::string path) { return path.starts_with("measures.") ? path.substr(9) : path; };
  return m.from.empty() ? plain(m.path) : plain(m.path) + " minus " + plain(m.from);
}

void add_rows(report::DotPlot& plot, const std::string& block, const Words& cells, const RecordMeasure& measure,
              size_t series, const std::string& note, const Protocol& protocol, const EvidenceRecords& records) {
  for (const std::string& cell : cells) {
    report::DotRow row{cell + note, series, {}, {}};
    std::vector<double> values;
    for (const EvidenceRun& run : protocol.runs()) {
      const Json* record = run.block == block && run.cell == cell ? records.find(run) : nullptr;
      if (!record) continue;
      double value = number_at(*record, measure.path, run.id());
      if (!measure.from.empty()) value -= number_at(*record, measure.from, run.id());
      values.push_back(value);
      row.values.emplace_back(static_cast<int>(run.seed) - 1, value);
    }
    row.interval = over_units(values, {}).interval;
    plot.rows.push_back(std::move(row));
  }
}

// Returns the cells with the high level of an effect, or the cells with its low level.
Words cells_of_effect(const FactorialDesign& design, const Words& factors, bool high) {
  Words out;
  for (const auto& [cell, signs] : design.signs) {
    if ((effect_sign(design, signs, factors) > 0) == high) out.push_back(cell);
  }
  return out;
}

EvidenceFigure measure_by_cell(const EvidenceClaim& c, const EvidenceClaims& claims, const Protocol& protocol,
                               const EvidenceRecords& records) {
  const bool effect = c.form == "effect";
  const Words over = effect ? cells_of_effect(claims.design, c.factors, true) : c.over;
  const Words under = effect ? cells_of_effect(claims.design, c.factors, false) : c.under;
  const bool other = c.under_measure.path != c.measure.path;
  report::DotPlot plot;
  plot.x_label = measure_name(c.measure, claims);
  add_rows(plot, c.block, over, c.measure, 0, "", protocol, records);
  add_rows(plot, c.under_block, under, c.under_measure, 1, other ? ", other measure" : "", protocol, records);
  if (c.form == "bound") plot.reference = {c.bound, fmt::format("rule: {} {:g}", c.side, c.bound)};
  const std::string blocks = c.under_block == c.block ? c.block : c.block + " and " + c.under_block;
  plot.label = fmt::format("{}: {} by cell of block {}, one mark per seed", c.text, plot.x_label, blocks);
  if (other) plot.label += fmt::format("; other measure: {}", measure_name(c.under_measure, claims));
  const bool any = std::any_of(plot.rows.begin(), plot.rows.end(), [](const auto& row) { return !row.values.empty(); });
  return {"claim-" + c.name + ".svg", c.text,
          any ? report::svg_file(report::draw(plot, kWidth), kWidth, report::height_of(plot), plot.label) : "", ""};
}

// Sets the axis ranges from the curves and draws the file.
EvidenceFigure curves(const std::string& file, const std::string& title, const std::string& section,
                      report::Plot plot) {
  if (!report::fit_axes(plot)) return {file, title, "", section};
  plot.y_low = std::min(plot.y_low, 0.0), plot.y_high = std::max(plot.y_high, 0.0);
  report::add_room(plot.y_low, plot.y_high);
  return {file, title, report::svg_file(report::draw(plot, kWidth, kHeight), kWidth, kHeight, plot.label), section};
}

// The color of a curve shows the side of the claim (0: the claim's cells, 1: the cells compared with them); the mark
// shows the seed.
report::Curve curve_of(size_t side, int64_t seed) {
  return {{}, "curve " + report::series_class(side), true, report::series_mark(static_cast<size_t>(seed - 1))};
}

void add_legend(report::Plot& plot, const Words& sides, const std::vector<int64_t>& seeds) {
  for (size_t side = 0; side < sides.size(); ++side)
    plot.legend.push_back({sides[side], {{}, "curve " + report::series_class(side)}});
  for (const int64_t seed : seeds) {
    plot.legend.push_back({fmt::format("seed {}", seed), curve_of(kNeutral, seed)});
    plot.legend.back().second.line = false;
  }
}

void over_tokens(report::Plot& plot) {
  plot.x_ticks = report::Plot::XTicks::counts;
  plot.x_label = "tokens";
}

// Draws one curve per side of the comparison and seed, the mean over the cells of the side. A curve is drawn only if
// all of its cells are recorded.
EvidenceFigure layer_curves(const ByLayer& l, const std::string& name, const std::string& path,
                            const Protocol& protocol, const EvidenceRecords& records) {
  report::Plot plot;
  plot.label = fmt::format("{} by layer in block {}: mean over cells, one curve per seed; {} compared with {}", name,
                           l.block, fmt::join(l.over, ", "), fmt::join(l.under, ", "));
  plot.y_label = name;
  plot.x_label = "layer";
  plot.x_ticks = report::Plot::XTicks::integers;
  add_legend(plot, {l.over.front() + " cells", l.under.front() + " cells"}, protocol.block(l.block).seeds);
  for (const int64_t seed : protocol.block(l.block).seeds) {
    for (const Words* cells : {&l.over, &l.under}) {
      std::vector<double> sum;
      size_t found = 0;
      for (const EvidenceRun& run : protocol.runs()) {
        const bool wanted = run.block == l.block && run.seed == seed && contains(*cells, run.cell);
        const Json* record = wanted ? records.find(run) : nullptr;
        if (!record) continue;
        const std::vector<double> values = numbers_at(*record, path, run.id());
        sum.resize(std::max(sum.size(), values.size()));
        for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
        ++found;
      }
      if (found != cells->size()) continue;
      report::Curve curve = curve_of(cells == &l.over ? 0 : 1, seed);
      for (size_t i = 0; i < sum.size(); ++i)
        curve.points.emplace_back(static_cast<double>(i), sum[i] / static_cast<double>(found));
      plot.curves.push_back(std::move(curve));
    }
  }
  return curves("layers-" + name + ".svg", name + " by layer", "by-layer", std::move(plot));
}

EvidenceFigure head_start_curves(const HeadStart& h, const Protocol& protocol, const EvidenceRecords& records) {
  constexpr int kPoints = 40;
  report::Plot plot;
  plot.label = fmt::format("Head start: validation loss of {} minus {} in block {}, one curve per seed",
                           fmt::join(h.over, ", "), fmt::join(h.under, ", "), h.block);
  plot.y_label = "difference, nats per token";
  over_tokens(plot);
  const auto all = static_cast<double>(protocol.block(h.block).tokens);
  std::map<int64_t, report::Curve> curves_of;  // by seed
  std::vector<int64_t> seeds;
  for (int n = 2; n <= kPoints; ++n) {  // starts at 2, because the first fortieth would dominate the axis range
    const double tokens = all * n / kPoints;
    for (const auto& [seed, value] : head_start(h, tokens, protocol, records))
      curves_of.try_emplace(seed, curve_of(0, seed)).first->second.points.emplace_back(tokens, value);
  }
  for (auto& [seed, curve] : curves_of) {
    plot.curves.push_back(std::move(curve));
    seeds.push_back(seed);
  }
  add_legend(plot, {}, seeds);
  return curves("head-start-" + h.block + ".svg", "Head start over training, block " + h.block, "head-start-" + h.block,
                std::move(plot));
}

EvidenceFigure over_training(const EvidenceClaim& c, const EvidenceClaims& claims, const Protocol& protocol,
                             const EvidenceRecords& records) {
  report::Plot plot;
  plot.y_label = measure_name({"measures." + c.slope_measure, ""}, claims);
  plot.label = fmt::format("{}: {} over training in block {}, one curve per run", c.text, plot.y_label, c.slope_block);
  over_tokens(plot);
  Words others = protocol.block(c.slope_block).cells;
  std::erase_if(others, [&](const std::string& cell) { return contains(c.slope_cells, cell); });
  add_legend(plot, {fmt::format("{}", fmt::join(c.slope_cells, ", ")), fmt::format("{}", fmt::join(others, ", "))},
             protocol.block(c.slope_block).seeds);
  for (const EvidenceRun& run : protocol.runs()) {
    const Json* record = run.block == c.slope_block ? records.find(run) : nullptr;
    if (!record || !record->contains("snapshots")) continue;
    report::Curve curve = curve_of(contains(c.slope_cells, run.cell) ? 0 : 1, run.seed);
    for (const Json& s : record->at("snapshots")) {
      curve.points.emplace_back(number_at(s, "tokens", run.id()), number_at(s, c.slope_measure, run.id()));
    }
    plot.curves.push_back(std::move(curve));
  }
  return curves("training-" + c.name + ".svg", c.text + ", over training", c.name, std::move(plot));
}

}  // namespace

std::vector<EvidenceFigure> evidence_figures(const EvidenceClaims& claims, const Protocol& protocol,
                                             const EvidenceRecords& records) {
  std::vector<EvidenceFigure> out;
  for (const EvidenceClaim& c : claims.claims) {
    out.push_back(measure_by_cell(c, claims, protocol, records));
    out.back().section = c.name;
    if (c.slope_block.empty()) continue;
    out.push_back(over_training(c, claims, protocol, records));
    out.back().section = c.name;
  }
  for (const HeadStart& h : claims.head_starts) out.push_back(head_start_curves(h, protocol, records));
  for (const auto& [name, path] : claims.by_layer.measures)
    out.push_back(layer_curves(claims.by_layer, name, path, protocol, records));
  std::erase_if(out, [](const EvidenceFigure& f) { return f.svg.empty(); });
  return out;
}

}  // namespace lazy::repro
