// Further checks of Lazy Attention against softmax twins: seeds, other domains, the RoPE base, speed.
#include <fmt/format.h>

#include <cmath>

#include "repro/recipe.h"

namespace lazy::repro {

// Exact twins that differ in attention alone, over seeds.

Recipe parity() {
  return {
      "parity",
      "exact twins: Lazy against softmax, all else equal",
      "further check",
      [](const Conditions& c) {
        const Budget b = Budget::ablation;
        return Plan(c)
            .train(lazy_model(c.scale, b))
            .train(softmax_twin(b))
            .train(softmax_model(b))
            .measure(StepKind::heldout)
            .measure(StepKind::sinks)
            .steps();
      },
      [](const Conditions&, const Results& r) {
        const std::string sequences = over(r, "held-out sequences"), samples = over(r, "samples of held-out text");
        const char* missing = "one of the two was not measured";
        return std::vector<Finding>{
            judge({"Lazy Attention's held-out loss is below its twin's: same shape, data, order, seed and RoPE "
                   "base 1.5e5",
                   "improves language modeling (paper, section 1)", "nats a token", sequences},
                  r.paired_difference("lazy", "softmax-rope150k", StepKind::heldout, "loss"), ExpectedSign::negative,
                  missing),
            judge({"the same against softmax at RoPE base 1e4", "as above", "nats a token", sequences},
                  r.paired_difference("lazy", "softmax", StepKind::heldout, "loss"), ExpectedSign::negative, missing),
            judge({"Lazy Attention's sink ratio is below its twin's", "5.46 % to 0.18 % (paper, Table 2)",
                   "share of weight", samples},
                  r.paired_difference("lazy", "softmax-rope150k", StepKind::sinks, "sink_ratio"),
                  ExpectedSign::negative, missing),
            judge({"Lazy Attention's density is below its twin's", "94.53 % to 40.24 % (paper, Table 2)",
                   "share of weight", samples},
                  r.paired_difference("lazy", "softmax-rope150k", StepKind::sinks, "density"), ExpectedSign::negative,
                  missing)};
      },
      {},
      {"--seeds N trains every model N times; the interval then is about other seeds too."}};
}

// The same models on text of other domains.

namespace {

std::vector<Finding> judge_domains(const Conditions& c, const Results& results) {
  std::vector<Finding> out;
  if (c.domains.empty())
    return {undecided(
        {"Lazy Attention carries over to code, scientific and multilingual text", "not tested in the paper", "", ""},
        "no --domain NAME=DIR was given")};
  for (const auto& [domain, folder] : c.domains) {
    // Each domain is a step of its own.
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
                        difference("loss"), ExpectedSign::negative, "not measured"));
    out.push_back(judge({fmt::format("{}: Lazy Attention's sink ratio is below its softmax twin's", domain),
                         "claimed for web text only", "share of weight", stretches},
                        difference("sink_ratio"), ExpectedSign::negative, "not measured"));
  }
  return out;
}

}  // namespace

Recipe cross_domain() {
  return {"cross-domain",
          "code, scientific, multilingual text",
          "further check",
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

// Sensitivity to the RoPE base.

namespace {

constexpr int64_t kBases[] = {10000, 50000, 150000, 1000000};

std::string row(const char* kind, int64_t base) { return fmt::format("{}-base{}", kind, base); }

std::vector<Step> plan_bases(const Conditions& c) {
  Plan plan(c);
  for (const int64_t base : kBases) {
    Model lazy = lazy_model(c.scale, Budget::ablation), softmax = softmax_model(Budget::ablation);
    lazy.name = row("lazy", base);
    softmax.name = row("softmax", base);
    for (Model* m : {&lazy, &softmax}) {
      m->overrides.push_back(fmt::format("model.rope_theta={}", base));
      plan.train(*m);
    }
  }
  const int64_t context = c.scale.context(Budget::ablation);
  return plan.measure(StepKind::heldout)
      .measure(StepKind::sinks)
      .measure(StepKind::lengths, {{"lengths", {context, 4 * context}}})
      .steps();
}

std::vector<Finding> judge_bases(const Conditions& c, const Results& results) {
  const int64_t context = c.scale.context(Budget::ablation);
  const std::string from = fmt::format("heldout/{}", context), to = fmt::format("heldout/{}", 4 * context);
  std::vector<Finding> out;
  for (const char* kind : {"lazy", "softmax"}) {
    for (const int64_t base : kBases) {
      if (base == kBases[0]) continue;
      out.push_back(judge({fmt::format("{}: base {} degrades less than base {} at {} tokens (trained at {})", kind,
                                       base, kBases[0], 4 * context, context),
                           "a larger base mitigates long-range decay (paper, section 4.1)", "nats a token",
                           over(results, "stretches of text")},
                          results.paired_change(row(kind, base), row(kind, kBases[0]), StepKind::lengths, from, to),
                          ExpectedSign::negative, "not measured"));
      out.push_back(
          judge({fmt::format("{}: base {} has a lower held-out loss than base {} at the training length", kind, base,
                             kBases[0]),
                 "adopted for Lazy Attention, not ablated", "nats a token", over(results, "held-out sequences")},
                results.paired_difference(row(kind, base), row(kind, kBases[0]), StepKind::heldout, "loss"),
                ExpectedSign::negative, "not measured"));
    }
  }
  for (const int64_t base : kBases) {
    out.push_back(
        judge({fmt::format("base {}: Lazy Attention's sink ratio is below softmax's", base),
               "removes the sink (paper, section 5.6)", "share of weight", over(results, "samples of held-out text")},
              results.paired_difference(row("lazy", base), row("softmax", base), StepKind::sinks, "sink_ratio"),
              ExpectedSign::negative, "not measured"));
  }
  return out;
}

}  // namespace

Recipe rope_base() {
  return {"rope-base",
          "sensitivity to the RoPE base",
          "further check; paper, section 4.1",
          plan_bases,
          judge_bases,
          {},
          {"Bases 1e4, 5e4, 1.5e5 and 1e6, each for Lazy Attention and for softmax."}};
}

// Speed of Elastic-Softmax beside softmax by the same kernels.

namespace {

std::vector<Step> plan_rounds(const Conditions& c) {
  const bool gpu = c.device == "cuda";
  Json settings{{"rounds", 9}, {"device", c.device}, {"dtype", gpu ? "bf16" : "fp32"}, {"head_dim", 64}};
  // Shapes that take seconds on a laptop; usual shapes of a GPU.
  settings["attention"] = gpu ? Json{{"batch", 8}, {"length", 4096}, {"heads", 16}}
                              : Json{{"batch", 1}, {"length", c.scale.name == "tiny" ? 1024 : 4096}, {"heads", 4}};
  settings["decode"] = gpu ? Json{{"batch", 16}, {"keys", 32768}, {"heads", 16}}
                           : Json{{"batch", 1}, {"keys", c.scale.name == "tiny" ? 8192 : 32768}, {"heads", 4}};
  return Plan(c).once(StepKind::latency, "latency", settings).steps();
}

std::vector<Finding> judge_speed(const Conditions&, const Results& results) {
  const struct {
    const char *field, *words;
  } parts[] = {{"forward", "forward pass over a whole text"},
               {"forward_backward", "forward and backward pass (training)"},
               {"decode", "one new token against a long cache"}};
  std::vector<Finding> out;
  const Json* values = results.find("latency");
  for (const auto& part : parts) {
    Claim claim{fmt::format("{}: Elastic-Softmax is at least as fast as softmax by the same kernels (log of softmax's "
                            "time over Elastic-Softmax's)",
                            part.words),
                "\"minimal overhead\" (paper, appendix F), no times published", "log ratio", "rounds of the benchmark"};
    if (!values || !values->contains(part.field)) {
      out.push_back(undecided(claim, "not measured"));
      continue;
    }
    const Json& found = values->at(part.field);
    std::vector<double> logs;
    for (const double ratio : found.at("ratios").get<std::vector<double>>()) logs.push_back(std::log(ratio));
    Finding finding = judge_sign(claim, bootstrap_mean(logs), ExpectedSign::positive);
    finding.reason +=
        fmt::format("; speed {:.2f} of softmax's, {:.0f} % of pairs alive",
                    std::exp(finding.estimate ? finding.estimate->value : 0), 100 * found.at("alive").get<double>());
    out.push_back(finding);
  }
  return out;
}

}  // namespace

Recipe latency() {
  return {
      "latency",
      "does the second pass cost what sparsity gives?",
      "further check; paper, appendix F",
      plan_rounds,
      judge_speed,
      {},
      {"Times of lazy bench attention and lazy bench decode on this machine, softmax and Elastic-Softmax by the same "
       "kernels, without distance bias.",
       "How many pairs are alive is set by the benchmark's scores; trained models have 15 to 30 % (docs/results/)."}};
}

}  // namespace lazy::repro
