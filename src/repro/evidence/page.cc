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

// Columns of the table of runs: title, and path in the record. Losses are in nats per token. Only softmax runs have the
// post-hoc control, in which an elastic offset is applied after training.
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

// Returns the sets of factors: first single factors (main effects), then pairs (interactions), then larger sets.
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
  int64_t left_out = 0;  // number of runs excluded by the condition of their block
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
      row[name] = found.is_number() ? found : Json();  // missing: only softmax models have a post-hoc control
    }
    out["records"].push_back(std::move(row));
  }
  return out;
}

std::string evidence_page(const EvidenceClaims& claims, const Protocol& protocol, const EvidenceRecords& records,
                          const std::vector<EvidenceFigure>& figures) {
  const Json all = evidence_json(claims, protocol, records);
  std::string page =
      fmt::format("# Results\n\n{} of {} runs are recorded{}; the verdicts apply only to {} parameters.\n",
                  all.at("recorded").dump(), all.at("runs").dump(),
                  all.at("left_out") == 0
                      ? ""
                      : fmt::format(", {} are excluded by the condition of their block", all.at("left_out").dump()),
                  claims.parameters);
  page += fmt::format(
      "\n"
      "This page tests the claims of the paper (arXiv 2601.00919) with a protocol that was fixed before the runs\n"
      "([configs/evidence.toml](../../configs/evidence.toml)) and with the rules in\n"
      "[configs/evidence-claims.toml](../../configs/evidence-claims.toml). The models are smaller than the paper's "
      "models, so\n"
      "the verdicts do not apply to the paper's models.\n"
      "\n"
      "The statistical unit is the seed; cells with the same seed are compared as pairs. Intervals are 95 % "
      "confidence\n"
      "intervals (Student's t) over seeds. p is two-sided and tests against the bound of the rule. One Holm correction "
      "covers\n"
      "the {} primary claims, in which a claim without a p counts as p = 1.\n"
      "\n"
      "- *Reproduced*: the whole interval is on the side that the rule names, the adjusted p is below 0.05, and the "
      "further\n"
      "  conditions of the rule hold\n"
      "- *Refuted*: the whole interval is on the other side\n"
      "- *Open*: none of the above, or only one seed, which has no interval\n"
      "- *Not testable*: softmax shows no excess sink above zero, or one that is too small for the condition of the "
      "block\n"
      "- *Missing*: no seed has a record for every cell that the claim names\n",
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
    page += "\nDifferences from the paper that apply to all claims:\n\n";
    for (const std::string& text : claims.differs) page += bullet(text);
  }
  if (!figures.empty()) {
    page +=
        "\n"
        "The figures show the measure of a claim by cell. A mark is one seed (circle 1, square 2, triangle 3); a bar "
        "is the 95 %\n"
        "interval of the mean. Orange: the cells that the claim is about. Blue: the cells that they are compared with. "
        "The dashed\n"
        "line is the bound of the rule.\n";
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
  page += "\nFactor levels from low to high:";
  for (size_t i = 0; i < claims.design.factors.size(); ++i) {
    page += fmt::format("{} {} {} to {}", i ? "," : "", claims.design.factors[i], claims.design.low[i],
                        claims.design.high[i]);
  }
  page += fmt::format(
      ".\n"
      "A contrast is the sum of sign times value over all cells, divided by half the number of cells. For a main "
      "effect this is\n"
      "the mean at the high level minus the mean at the low level; for an interaction of two factors it is half the "
      "difference\n"
      "between the effects. A seed counts when all {} cells are recorded. All effects except the primary claim's "
      "effect are\n"
      "exploratory.\n",
      claims.design.signs.size());

  rows = {{"block", "tokens", "difference, nats", "95 % interval", "seeds"}};
  for (const Json& h : all.at("head_start")) {
    rows.push_back({h.at("block").get<std::string>(), human_count(h.at("tokens").get<double>()),
                    value_text(h.at("difference")), interval_text(h.at("difference")), seeds_text(h.at("difference"))});
  }
  page += table("Head start", rows, "lrrrr");
  for (const HeadStart& h : claims.head_starts) {
    add_figures("head-start-" + h.block);
    page += fmt::format(
        "\nPaired difference of the validation loss in block {} ({} tokens per run): the mean over the "
        "cells\n{}\nminus the mean over the cells\n{}.\n",
        h.block, human_count(static_cast<double>(protocol.block(h.block).tokens)), fmt::join(h.over, ", "),
        fmt::join(h.under, ", "));
  }

  const ByLayer& layers = claims.by_layer;
  if (!layers.measures.empty()) {
    page +=
        "\n## By layer\n\n" +
        wrapped(fmt::format("Mean over the cells of block {}; one curve per seed for which all cells are recorded. "
                            "Orange: {}. Blue: {}. For states and residual, index 0 is before the first layer; for "
                            "weights, index 0 is the first layer. [repro.md](../guides/repro.md) defines the measures.",
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
      "\nLosses are in nats per token. Sinks and densities are fractions, measured on samples that begin with BOS. "
      "Post-hoc: the\n"
      "trained softmax model with ReLU(p - 1 / i) instead of its weights p.\n\n## Commands\n\n```\n"
      "lazy repro evidence --corpus corpus --data data/eval       # the runs that have no record yet\n"
      "lazy repro evidence --report docs/results/README.md        # this page, from the records\n```\n";
  if (!claims.pages.empty()) page += "\n## Other results\n\n";
  for (const std::string& text : claims.pages) page += bullet(text);
  return page;
}

}  // namespace lazy::repro
