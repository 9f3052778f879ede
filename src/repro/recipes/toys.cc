// The toy transformers of "Sparse attention 5 - attention sink" : unigram and bigram sources, with
// and without BOS.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipe.h"

namespace lazy::repro {
namespace {

constexpr int64_t kToySeeds = 4;  // as the source
using Numbers = std::vector<double>;

// What differs between the decided form and the others.
struct Variant {
  const char* name;
  bool bos;
  int64_t width;
  bool residual = false, tied = true;
};
constexpr Variant kUnigram[] = {{"bos", true, 2},
                                {"plain", false, 2},
                                {"bos-d1", true, 1},
                                {"bos-residual", true, 2, true},
                                {"bos-untied", true, 2, false, false}};
constexpr Variant kBigram[] = {{"bos", true, 20},
                               {"plain", false, 20},
                               {"bos-d2", true, 2},
                               {"bos-residual", true, 20, true},
                               {"bos-untied", true, 20, false, false}};

std::string toy_step(const std::string& data, const std::string& variant, int64_t seed) {
  return fmt::format("{}.{}.seed{}", data, variant, seed);
}

template <size_t n>
std::vector<Step> plan_toys(const Conditions& c, const char* data, const Variant (&variants)[n]) {
  Plan plan(c);
  for (const Variant& v : variants) {
    for (int64_t seed = 0; seed < std::max(kToySeeds, c.seeds); ++seed) {
      plan.once(StepKind::experiment, toy_step(data, v.name, seed),
                {{"study", "toy"},
                 {"data", data},
                 {"bos", v.bos},
                 {"width", v.width},
                 {"residual", v.residual},
                 {"tied", v.tied},
                 {"seed", seed},
                 {"steps", 3000},
                 {"snapshots", {0, 10, 100, 1000, 3000}},
                 {"length", 10},
                 {"batch", 128},
                 {"rate", 0.01},
                 {"vocabulary", 100},
                 {"rank", 20},
                 {"alpha", 1.0}});
    }
  }
  return plan.steps();
}

std::vector<const Json*> of_variant(const Results& results, const std::string& data, const std::string& variant) {
  std::vector<const Json*> out;
  for (int64_t seed = 0; const Json* values = results.find(toy_step(data, variant, seed)); ++seed)
    out.push_back(values);
  return out;
}

// A list of each seed, as groups that are resampled seed by seed.
Groups lists(const std::vector<const Json*>& runs, const char* field, double minus = 0) {
  Groups groups;
  for (const Json* run : runs) {
    groups.push_back(run->at(field).get<Numbers>());
    for (double& v : groups.back()) v -= minus;
  }
  return groups;
}

// By token of the vocabulary (rank 0 is the most frequent): the mean over seeds of a measure in units of its own mean,
// so that no seed's scale weighs more. Tokens that never occurred are left out.
struct Halves {
  Numbers frequent, infrequent;
};
Halves by_frequency(const std::vector<const Json*>& runs, const char* field, size_t vocabulary) {
  Numbers sum(vocabulary), count(vocabulary);
  for (const Json* run : runs) {
    double mean = 0, n = 0;
    for (size_t t = 0; t < vocabulary; ++t) {
      if (!run->at(field).at(t).is_null()) mean += run->at(field).at(t).get<double>(), n += 1;
    }
    mean /= n;
    for (size_t t = 0; t < vocabulary; ++t) {
      if (!run->at(field).at(t).is_null()) sum[t] += run->at(field).at(t).get<double>() / mean, count[t] += 1;
    }
  }
  Halves out;
  for (size_t t = 0; t < vocabulary; ++t) {
    if (count[t] > 0) (t < vocabulary / 2 ? out.frequent : out.infrequent).push_back(sum[t] / count[t]);
  }
  return out;
}

Finding excess_over_floor(const std::string& text, const std::vector<const Json*>& runs) {
  Numbers gaps;
  for (const Json* run : runs)
    gaps.push_back(mean_of(run->at("losses").get<Numbers>()) - run->at("floor").get<double>());
  return judge_value({fmt::format("{}: held-out loss above the source's entropy ({:.4g} nats)", text,
                                  runs.front()->at("floor").get<double>()),
                      "the task is performed perfectly (toy post)", "nats a token", "seeds"},
                     bootstrap_mean(gaps), 0, "the loss of finitely many held-out tokens scatters around the entropy");
}

std::vector<Finding> judge_unigram(const Conditions&, const Results& results) {
  const auto bos = of_variant(results, "unigram", "bos"), plain = of_variant(results, "unigram", "plain");
  if (bos.empty() || plain.empty())
    return {undecided({"the toy transformer has a sink", "toy post", "", ""}, "it was not trained")};
  const std::string seeds = "seeds and held-out sequences";
  const Halves distance = by_frequency(bos, "distance", 100), received = by_frequency(bos, "received", 100),
               without = by_frequency(plain, "received", 100);
  std::vector<Finding> out{
      judge_sign({"with BOS: BOS receives more than an equal share of the weight of content queries",
                  "BOS is heavily attended to (toy post)", "share of weight", seeds},
                 bootstrap_mean(lists(bos, "to_bos", bos.front()->at("uniform_share").get<double>())),
                 ExpectedSign::positive),
      judge_sign({"with BOS: infrequent tokens (ranks 51 to 100) lie nearer to BOS in embedding space than frequent "
                  "ones (distance over its mean, frequent minus infrequent)",
                  "large-index tokens are closer to BOS (toy post)", "relative distance", "tokens"},
                 bootstrap_difference(distance.frequent, distance.infrequent), ExpectedSign::positive),
      judge_sign({"with BOS: infrequent tokens receive more attention than frequent ones where they stand (over its "
                  "mean, infrequent minus frequent)",
                  "infrequent tokens receive more attention (toy post)", "relative attention", "tokens"},
                 bootstrap_difference(received.infrequent, received.frequent), ExpectedSign::positive),
      judge_sign({"without BOS: the sinks are frequent tokens (relative attention received, the ten most frequent "
                  "minus all others)",
                  "sinks correspond to frequent tokens (toy post)", "relative attention", "tokens"},
                 bootstrap_difference(Numbers(without.frequent.begin(), without.frequent.begin() + 10),
                                      [&] {
                                        Numbers rest(without.frequent.begin() + 10, without.frequent.end());
                                        rest.insert(rest.end(), without.infrequent.begin(), without.infrequent.end());
                                        return rest;
                                      }()),
                 ExpectedSign::positive)};
  for (const Variant& v : kUnigram)
    out.push_back(excess_over_floor(fmt::format("unigram {}", v.name), of_variant(results, "unigram", v.name)));
  for (const char* other : {"bos-d1", "bos-residual", "bos-untied"}) {
    const auto runs = of_variant(results, "unigram", other);
    out.push_back(judge_sign({fmt::format("variant {}: BOS receives more than an equal share of the weight", other),
                              "not published: another form of the toy", "share of weight", seeds},
                             bootstrap_mean(lists(runs, "to_bos", runs.front()->at("uniform_share").get<double>())),
                             ExpectedSign::positive));
  }
  return out;
}

std::vector<Finding> judge_bigram(const Conditions&, const Results& results) {
  const auto bos = of_variant(results, "bigram", "bos"), plain = of_variant(results, "bigram", "plain");
  if (bos.empty() || plain.empty())
    return {undecided({"the toy transformer attends to the current token", "toy post", "", ""}, "it was not trained")};
  const std::string seeds = "seeds and held-out sequences";
  std::vector<Finding> out;
  for (const Variant& v : kBigram) {
    const auto runs = of_variant(results, "bigram", v.name);
    const bool decided = &v < kBigram + 2;
    out.push_back(judge_sign({fmt::format("bigram {}: a query gives more than half of its weight to its own token (all "
                                          "places of it together; less 1/2)",
                                          v.name),
                              decided ? "nearly diagonal, but for splitting among identical tokens (toy post)"
                                      : "not published: another form of the toy",
                              "share of weight - 1/2", seeds},
                             bootstrap_mean(lists(runs, "current", 0.5)), ExpectedSign::positive));
    out.push_back(excess_over_floor(fmt::format("bigram {}", v.name), runs));
  }
  out.push_back(judge_value(
      {"with BOS: weight of content queries on BOS", "some tokens attend to BOS (toy post)", "share of weight", seeds},
      bootstrap_mean(lists(bos, "to_bos")), 0, "no figure is published"));
  return out;
}

std::string embedding_plot(const Json& run) {
  const Json& points = run.at("snapshots").back().at("embedding");
  report::Plot plot;
  plot.label = "Token embeddings, coordinate 1 against coordinate 2";
  plot.x_label = "coordinate 1";
  plot.y_label = "coordinate 2";
  plot.x_low = plot.y_low = 1e9, plot.x_high = plot.y_high = -1e9;
  std::vector<report::Curve> curves{{{}, "dots s0", false, 0}, {{}, "dots s2", false, 0}, {{}, "dots s1", false, 3}};
  for (size_t t = 0; t < points.size(); ++t) {
    const double x = points.at(t).at(0), y = points.at(t).at(1);
    plot.x_low = std::min(plot.x_low, x), plot.x_high = std::max(plot.x_high, x);
    plot.y_low = std::min(plot.y_low, y), plot.y_high = std::max(plot.y_high, y);
    curves[t >= 100 ? 2 : t < 50 ? 0 : 1].points.emplace_back(x, y);
  }
  const double dx = 0.05 * (plot.x_high - plot.x_low) + 1e-6, dy = 0.05 * (plot.y_high - plot.y_low) + 1e-6;
  plot.x_low -= dx, plot.x_high += dx, plot.y_low -= dy, plot.y_high += dy;
  plot.curves = std::move(curves);
  return report::draw(plot, 296, 300, "small");
}

std::string rank_plot(const std::vector<const Json*>& runs, const char* field, const char* what) {
  report::Plot plot;
  plot.label = fmt::format("{} by token rank", what);
  plot.x_label = "token rank (0: most frequent)";
  plot.y_label = what;
  plot.x_high = 99;
  plot.y_high = 1e-9;
  for (size_t n = 0; n < runs.size(); ++n) {
    report::Curve curve{{}, fmt::format("curve thin s{}", n % 8), true, -1};
    for (size_t t = 0; t < 100; ++t) {
      const Json& value = runs[n]->at(field).at(t);
      if (value.is_null()) continue;
      curve.points.emplace_back(static_cast<double>(t), value.get<double>());
      plot.y_high = std::max(plot.y_high, 1.05 * value.get<double>());
    }
    plot.curves.push_back(std::move(curve));
  }
  return report::draw(plot, 296, 240, "small");
}

// The first seed's maps: a slider over snapshots and one over sequences.
std::string toy_maps(const std::string& id, const Json& run, bool bos) {
  const Json &snapshots = run.at("snapshots"), &sequences = run.at("sequences");
  report::MapAxis steps{"step", {}};
  for (const Json& s : snapshots) steps.labels.push_back(std::to_string(s.at("step").get<int64_t>()));
  return report::map_browser(
      id, {steps, report::numbered("sequence", sequences.size())}, [&](size_t step, size_t sequence) {
        std::vector<std::string> tokens;
        if (bos) tokens.emplace_back("BOS");
        for (const int64_t token : sequences.at(sequence).get<std::vector<int64_t>>())
          tokens.push_back(std::to_string(token));
        return report::draw_compact(
            {1, 1, tokens, snapshots.at(step).at("maps").at(sequence).get<std::vector<Numbers>>()});
      });
}

std::string toy_pictures(const Results& results, const std::string& data) {
  std::string body;
  for (const char* variant : {"bos", "plain"}) {
    const auto runs = of_variant(results, data, variant);
    if (runs.empty()) continue;
    const bool bos = variant == std::string("bos");
    body += fmt::format("<h3>{}</h3>", bos ? "With BOS" : "Without BOS");
    body += report::figure(
        toy_maps(fmt::format("{}-{}", data, variant), *runs.front(), bos) + report::draw_weight_bar(),
        "Attention of seed 0 by training step and sequence. Row: query. Column: key, in the same order.", "splittable");
    std::string panels =
        "<div class=\"panel\"><h4>Attention received</h4>" + rank_plot(runs, "received", "weight received") + "</div>";
    if (bos)
      panels += "<div class=\"panel\"><h4>Distance to BOS</h4>" + rank_plot(runs, "distance", "distance") + "</div>";
    if (data == "unigram") {
      for (size_t n = 0; n < runs.size(); ++n)
        panels += fmt::format("<div class=\"panel\"><h4>Embeddings, seed {}</h4>{}</div>", n, embedding_plot(*runs[n]));
    }
    body += report::figure("<div class=\"multiples\">" + panels + "</div>",
                           "One curve a seed. Embeddings: the frequent half of the vocabulary in the first colour, the "
                           "other half in the third, BOS as a diamond.");
  }
  return body.empty() ? "" : report::section("toys", "What the toys learn", "", body);
}

const char* kToyNote =
    "One causal head without positions, MLP, norm and residual; tied embeddings; every matrix N(0, 0.02); Adam 0.01, "
    "3000 steps of 128 fresh sequences of ten tokens. "
    "The variants bos-residual and bos-untied change one of these.";

}  // namespace

Recipe toy_unigram() {
  return {
      "toy-unigram",
      "a one-layer toy on tokens drawn one by one: who becomes the sink",
      "toy post, experiment 1",
      [](const Conditions& c) { return plan_toys(c, "unigram", kUnigram); },
      judge_unigram,
      {},
      {kToyNote, "Tokens are drawn with probability proportional to 1 / (rank + 1). The printed sequences are drawn."},
      [](const Results& r) { return toy_pictures(r, "unigram"); }};
}

Recipe toy_bigram() {
  return {"toy-bigram",
          "the same where the current token decides the next",
          "toy post, experiment 2",
          [](const Conditions& c) { return plan_toys(c, "bigram", kBigram); },
          judge_bigram,
          {},
          {kToyNote,
           "Transitions are the rows of softmax(A B / sqrt(20)), A and B standard normal, the same for all seeds; "
           "width 20 (at width 2, variant bos-d2, a bigram of rank 20 cannot be learned)."},
          [](const Results& r) { return toy_pictures(r, "bigram"); }};
}

}  // namespace lazy::repro
