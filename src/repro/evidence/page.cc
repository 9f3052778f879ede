#include "repro/evidence/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/text.h"
#include "repro/evidence/record.h"
#include "repro/measure_kinds.h"
#include "repro/report.h"

namespace lazy::repro {

namespace {

using Rows = std::vector<Words>;

// Of the table of runs. Losses are in nats a token; the post-hoc control is softmax's alone.
constexpr std::pair<const char*, const char*> kRunColumns[] = {
    {"held-out loss", "measures.heldout.loss"},
    {"WikiText, BOS", "measures.wikitext.bos_every_window.loss_per_token"},
    {"WikiText, no BOS", "measures.wikitext.no_bos.loss_per_token"},
    {"excess sink 64", "measures.sinks.64.bos.excess"},
    {"excess sink 512", "measures.sinks.512.bos.excess"},
    {"density 512", "measures.sinks.512.bos.density"},
    {"post-hoc density", "measures.post_hoc.sinks.512.bos.density"},
    {"post-hoc loss", "measures.post_hoc.heldout.loss"},
};

std::string number(double value) { return fmt::format("{:.4f}", value); }

Json estimate_json(const UnitEstimate& e) {
  if (e.by_unit.empty()) return nullptr;
  return {{"value", e.value},
          {"seeds", e.by_unit.size()},
          {"by_seed", e.by_unit},
          {"interval", e.interval ? Json({e.interval->low, e.interval->high}) : Json()},
          {"p", e.p ? Json(*e.p) : Json()}};
}

std::string value_text(const Json& e) { return e.is_null() ? "" : number(e.at("value").get<double>()); }

std::string interval_text(const Json& e) {
  if (e.is_null() || e.at("interval").is_null()) return "";
  const Json& i = e.at("interval");
  return fmt::format("{} to {}", number(i.at(0).get<double>()), number(i.at(1).get<double>()));
}

std::string seeds_text(const Json& e) { return e.is_null() ? "0" : e.at("seeds").dump(); }

// Main effects first, then interactions of two factors, of three.
std::vector<Words> factor_sets(const Words& factors) {
  std::vector<Words> out;
  for (size_t size = 1; size <= factors.size(); ++size) {
    for (size_t mask = 1; mask < size_t{1} << factors.size(); ++mask) {
      Words set;
      for (size_t i = 0; i < factors.size(); ++i) {
        if (mask >> i & 1) set.push_back(factors[i]);
      }
      if (set.size() == size) out.push_back(set);
    }
  }
  return out;
}

std::string bullet(const std::string& text) { return wrapped("- " + text, "  ") + "\n"; }

std::string claim_title(const Json& c) {
  return c.at("text").get<std::string>() + (c.at("primary").get<bool>() ? "" : " (exploratory)");
}

std::string table(const std::string& title, const Rows& rows, std::string_view columns) {
  return fmt::format("\n## {}\n\n{}", title, markdown_table(rows, columns));
}

}  // namespace

Json evidence_json(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records) {
  const auto find = [&](const EvidenceRun& run) { return records.find(run); };
  int64_t left_out = 0;  // runs whose block's condition is decided against them
  for (const EvidenceRun& run : protocol.runs()) {
    const EvidenceBlock& block = protocol.block(run.block);
    if (records.find(run) || run.cell == block.condition) continue;
    const BlockCondition condition = block_condition(protocol, block, find);
    left_out += condition.decided && !condition.unmet.empty();
  }
  Json out = {{"runs", protocol.runs().size()},  {"recorded", records.json.size()}, {"left_out", left_out},
              {"parameters", claims.parameters}, {"claims", Json::array()},         {"effects", Json::array()},
              {"head_start", Json::array()},     {"records", Json::array()}};
  const std::vector<ClaimVerdict> verdicts = judge_claims(claims, protocol, records);
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const EvidenceClaim& c = claims.claims[i];
    const ClaimVerdict& v = verdicts[i];
    out["claims"].push_back({{"claim", c.name},
                             {"text", c.text},
                             {"rule", c.rule},
                             {"paper", c.paper},
                             {"differs", c.differs},
                             {"primary", c.primary},
                             {"block", c.block},
                             {"effect", estimate_json(v.effect)},
                             {"adjusted_p", v.adjusted ? Json(*v.adjusted) : Json()},
                             {"verdict", name(v.verdict)},
                             {"note", v.note}});
  }
  for (const auto& [name, measure] : claims.effects) {
    for (const Words& factors : factor_sets(claims.design.factors)) {
      const auto values = contrast(claims.design, factors, measure, protocol, records);
      out["effects"].push_back(
          {{"measure", name}, {"factors", factors}, {"effect", estimate_json(over_units(values, above(0)))}});
    }
  }
  for (const HeadStart& h : claims.head_starts) {
    for (const double tokens : h.tokens) {
      std::vector<double> values;
      for (const auto& [seed, value] : head_start(h, tokens, protocol, records)) values.push_back(value);
      out["head_start"].push_back(
          {{"block", h.block}, {"tokens", tokens}, {"difference", estimate_json(over_units(values, above(0)))}});
    }
  }
  for (const EvidenceRun& run : protocol.runs()) {
    const Json* record = records.find(run);
    if (!record) continue;
    Json row = {{"run", run.id()}, {"exploratory", run.exploratory}, {"tokens", record->at("tokens")}};
    for (const auto& [name, path] : kRunColumns) {
      const Json found = at_path(*record, path, '.');
      row[name] = found.is_number() ? found : Json();  // none: the post-hoc control of a model that is not softmax
    }
    out["records"].push_back(std::move(row));
  }
  return out;
}

std::string evidence_page(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records,
                          const std::vector<EvidenceFigure>& figures) {
  const Json all = evidence_json(claims, protocol, records);
  std::string page = fmt::format(
      "# Results\n\n{} of {} runs are recorded{}; verdicts are for {} parameters only.\n", all.at("recorded").dump(),
      all.at("runs").dump(),
      all.at("left_out") == 0 ? ""
                              : fmt::format(", {} are left out by their block's condition", all.at("left_out").dump()),
      claims.parameters);
  page += fmt::format(
      "\nThe claims of the paper (arXiv 2601.00919), by a protocol that was fixed before the runs\n"
      "([configs/evidence.toml](../../configs/evidence.toml); rules:\n"
      "[configs/evidence-claims.toml](../../configs/evidence-claims.toml)). Below the paper's scale no verdict is one "
      "on\nits models.\n\n"
      "The unit is the seed, and cells of one seed are a pair. Intervals are 95 % Student's t over seeds; p is "
      "two-sided,\nagainst the rule's bound, with one Holm correction over the {} rows of primary claims. A row "
      "without a p counts as p = 1.\n\n"
      "- *Reproduced*: the interval lies wholly on the rule's side, the adjusted p is below 0.05, and the rule's\n"
      "  further conditions hold\n"
      "- *Refuted*: the interval lies wholly on the other side\n"
      "- *Open*: neither, or one seed, which has no interval\n"
      "- *Not testable*: softmax shows no excess sink above zero, or too small a one for the block's condition\n"
      "- *Missing*: no seed has every cell that the claim names\n",
      std::count_if(claims.claims.begin(), claims.claims.end(), [](const EvidenceClaim& c) { return c.primary; }));
  Rows rows{{"claim", "effect", "95 % interval", "seeds", "adjusted p", "verdict"}};
  for (const Json& c : all.at("claims")) {
    const Json& p = c.at("adjusted_p");
    rows.push_back({claim_title(c), value_text(c.at("effect")), interval_text(c.at("effect")),
                    seeds_text(c.at("effect")), p.is_null() ? "" : fmt::format("{:.3g}", p.get<double>()),
                    c.at("verdict").get<std::string>()});
  }
  page += table("Claims", rows, "lrrrrl");
  if (!claims.differs.empty()) {
    page += "\nWhat differs from the paper in all of them:\n\n";
    for (const std::string& text : claims.differs) page += bullet(text);
  }
  if (!figures.empty()) {
    page +=
        "\nPictures show a claim's measure by cell: a mark a seed (circle 1, square 2, triangle 3), a bar the 95 % "
        "interval\nof its mean. Orange: cells over which the claim is made, blue: those they are compared with. A "
        "dashed line: the\nrule.\n";
  }
  const auto add_figures = [&](const std::string& section) {
    for (const EvidenceFigure& f : figures)
      if (f.section == section) page += fmt::format("\n![{}]({})\n", f.title, f.file);
  };
  for (const Json& c : all.at("claims")) {
    const auto text = [&](const char* key) { return c.at(key).get<std::string>(); };
    page += fmt::format("\n### {}\n\n", claim_title(c));
    const std::string interval = interval_text(c.at("effect"));
    page += bullet(fmt::format("Rule: {} (block {})", text("rule"), text("block")));
    page += bullet(fmt::format("Found: {}{} ({}): **{}**",
                               c.at("effect").is_null() ? "nothing" : value_text(c.at("effect")),
                               interval.empty() ? "" : ", " + interval, text("note"), text("verdict")));
    if (!text("paper").empty()) page += bullet("Paper: " + text("paper"));
    if (!text("differs").empty()) page += bullet("Differs: " + text("differs"));
    add_figures(text("claim"));
  }

  rows = {{"measure", "effect of", "value", "95 % interval", "seeds"}};
  for (const Json& e : all.at("effects")) {
    rows.push_back({e.at("measure").get<std::string>(),
                    fmt::format("{}", fmt::join(e.at("factors").get<Words>(), " x ")), value_text(e.at("effect")),
                    interval_text(e.at("effect")), seeds_text(e.at("effect"))});
  }
  page += table("Effects in block " + claims.design.block, rows, "llrrr");
  page += "\nFrom low to high:";
  for (size_t i = 0; i < claims.design.factors.size(); ++i) {
    page += fmt::format("{} {} {} to {}", i ? "," : "", claims.design.factors[i], claims.design.low[i],
                        claims.design.high[i]);
  }
  page += fmt::format(
      ".\nA contrast is the sum of signs times values, divided by half the number of cells (a main\neffect: the mean "
      "at "
      "high minus the mean at low; an interaction of two: half the difference of the effects).\nA seed counts once all "
      "{} cells are recorded. Exploratory, but for the primary claim's.\n",
      claims.design.signs.size());

  rows = {{"block", "tokens", "difference, nats", "95 % interval", "seeds"}};
  for (const Json& h : all.at("head_start")) {
    rows.push_back({h.at("block").get<std::string>(), human_count(h.at("tokens").get<double>()),
                    value_text(h.at("difference")), interval_text(h.at("difference")), seeds_text(h.at("difference"))});
  }
  page += table("Head start", rows, "lrrrr");
  for (const HeadStart& h : claims.head_starts) {
    add_figures("head-start-" + h.block);
    page += fmt::format("\nPaired difference of the validation curve in block {} ({} tokens a run):\n{}\nminus\n{}.\n",
                        h.block, human_count(static_cast<double>(protocol.block(h.block).tokens)),
                        fmt::join(h.over, ", "), fmt::join(h.under, ", "));
  }

  const ByLayer& layers = claims.by_layer;
  if (!layers.measures.empty()) {
    page += "\n## By layer\n\n" +
            wrapped(fmt::format(
                "Mean over cells of block {}, a curve a seed whose cells are all recorded: orange {}; "
                "blue {}. States and residual: 0 is before the first layer; weights: 0 is the first layer. Measures: "
                "[repro.md](../repro.md).",
                layers.block, fmt::join(layers.over, ", "), fmt::join(layers.under, ", "))) +
            "\n";
    add_figures("by-layer");
  }

  rows = {{"run", "tokens"}};
  for (const auto& [name, path] : kRunColumns) rows[0].emplace_back(name);
  for (const Json& r : all.at("records")) {
    Words row{r.at("run").get<std::string>() + (r.at("exploratory").get<bool>() ? " (exploratory)" : ""),
              human_count(r.at("tokens").get<double>())};
    for (const auto& [name, path] : kRunColumns) row.push_back(r.at(name).is_null() ? "" : number(r.at(name)));
    rows.push_back(std::move(row));
  }
  page += table("Runs", rows, "lr");
  page +=
      "\nLosses are in nats a token, sinks and densities are shares, with BOS first in every sample. Post-hoc: the\n"
      "trained softmax model with ReLU(p - 1 / i) in place of its weights p.\n\n## Commands\n\n```\n"
      "lazy repro evidence --corpus corpus --data data/eval       # the runs that have no record yet\n"
      "lazy repro evidence --report docs/results/README.md        # this page, from the records\n```\n";
  if (!claims.pages.empty()) page += "\n## Other results\n\n";
  for (const std::string& text : claims.pages) page += bullet(text);
  return page;
}

}  // namespace lazy::repro
