// The digest's third check: the same models on text of other kinds.
#include <fmt/format.h>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

std::vector<Finding> judge_domains(const Conditions& c, const Results& results) {
  std::vector<Finding> out;
  if (c.domains.empty())
    return {undecided(
        {"Lazy Attention carries over to code, scientific and multilingual text", "not tested in the paper", "", ""},
        "no --domain NAME=DIR was given")};
  for (const auto& [domain, folder] : c.domains) {
    // Each domain is a step of its own; put its numbers where comparisons look for them.
    const auto difference = [&](const std::string& field) -> std::optional<Estimate> {
      Groups groups;
      for (int64_t seed = 1; seed <= c.seeds; ++seed) {
        const Json* a = results.find(fmt::format("{}.domain-{}", training_id("lazy", seed), domain));
        const Json* b = results.find(fmt::format("{}.domain-{}", training_id("softmax-rope150k", seed), domain));
        if (!a || !b) return std::nullopt;
        auto x = a->at(field).get<std::vector<double>>();
        const auto y = b->at(field).get<std::vector<double>>();
        for (size_t i = 0; i < x.size(); ++i) x[i] -= y.at(i);
        groups.push_back(std::move(x));
      }
      return bootstrap_mean(groups);
    };
    const std::string stretches = over(results, "stretches of text");
    out.push_back(judge({fmt::format("{}: Lazy Attention's loss is below its softmax twin's", domain),
                         "claimed for web text only", "nats a token", stretches},
                        difference("loss"), Sign::below_zero, "not measured"));
    out.push_back(judge({fmt::format("{}: Lazy Attention's sink ratio is below its softmax twin's", domain),
                         "claimed for web text only", "share of weight", stretches},
                        difference("sink_ratio"), Sign::below_zero, "not measured"));
  }
  return out;
}

}  // namespace

Recipe cross_domain() {
  return {"cross-domain",
          "code, scientific, multilingual text",
          "digest, check 3",
          [](const Conditions& c) {
            return Plan(c)
                .train(lazy_model(c.scale, Budget::ablation))
                .train(softmax_twin(Budget::ablation))
                .measure(StepKind::heldout)
                .measure(StepKind::domain)
                .steps();
          },
          judge_domains,
          {},
          {"--domain NAME=DIR may be repeated; every text file below DIR is read with the models' own tokenizer."}};
}

}  // namespace lazy::repro
