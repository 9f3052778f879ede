// Table 3: how many samples each benchmark has.
#include <fmt/format.h>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

struct Set {
  const char *title, *key;
  double published;
};
constexpr Set kSets[] = {{"WikiText", "wikitext", 60634},
                         {"LAMBADA", "lambada", 60000},
                         {"PIQA", "piqa", 16113},
                         {"HellaSwag", "hellaswag", 70000},
                         {"WinoGrande", "winogrande", 44000},
                         {"ARC (easy and challenge)", "arc", 7787},
                         {"SIQA", "siqa", 15554},
                         {"BoolQ", "boolq", 15942}};

PublishedTable published_benchmarks() {
  PublishedTable t{"Paper, Table 3", {"samples"}, {}};
  for (const Set& set : kSets) t.rows.push_back({set.title, {set.published}, ""});
  return t;
}

std::vector<Finding> judge_counts(const Conditions&, const Results& results) {
  std::vector<Finding> out;
  const Json* counts = results.find("datasets");
  for (const Set& set : kSets) {
    const Claim claim{fmt::format("{} has this many samples", set.title), fmt::format("{:.0f}", set.published),
                      "samples", "counted, not sampled"};
    if (!counts || !counts->contains(set.key)) {
      out.push_back(undecided(claim, counts ? "no file of this set below --data" : "no --data DIR was given"));
      continue;
    }
    const double ours = counts->at(set.key).at("samples").get<double>();
    const std::string files = counts->at(set.key).at("files").get<std::string>();
    out.push_back(judge_count(
        claim, ours, set.published,
        ours < set.published
            ? fmt::format("the paper's figure is that of all splits together; here are {}: {:.0f}", files, ours)
            : ""));
  }
  return out;
}

}  // namespace

Recipe table3() {
  return {
      "table3",
      "sizes of the benchmarks",
      "paper, Table 3",
      [](const Conditions& c) { return Plan(c).once(StepKind::datasets, "datasets", Json::object(), "data").steps(); },
      judge_counts,
      published_benchmarks(),
      {"The paper lists the sizes of whole data sets, some rounded; what is scored is one split of each "
       "(docs/evaluation.md)."}};
}

}  // namespace lazy::repro
