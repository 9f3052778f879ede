// Figure 6: perplexity beyond the training length.
#include <fmt/format.h>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

std::vector<int64_t> lengths(const Scale& scale) {
  const int64_t context = scale.context(Budget::ablation);
  return {context, 2 * context, 4 * context};
}

Model lazy_at_10k(const Scale& scale) {
  Model model = lazy_model(scale, Budget::ablation);
  model.name = "lazy-rope10k";
  model.overrides.push_back("model.rope_theta=10000");
  return model;
}

std::vector<Step> plan_lengths(const Conditions& c) {
  const Budget ablation = Budget::ablation;
  Plan plan(c);
  plan.train(lazy_model(c.scale, ablation))
      .train(lazy_at_10k(c.scale))
      .train(softmax_model(ablation))
      .train(softmax_twin(ablation));
  plan.train(without_positional(ablation)).train(without_elastic(c.scale, ablation));
  return plan.measure(StepKind::heldout).measure(StepKind::lengths, {{"lengths", lengths(c.scale)}}).steps();
}

std::vector<Finding> judge_lengths(const Conditions& c, const Results& results) {
  const auto all = lengths(c.scale);
  std::vector<Finding> out;
  // The mechanism at equal RoPE bases, the published pair, and the ablation.
  const struct {
    const char *a, *b, *words, *paper;
  } pairs[] = {
      {"lazy", "softmax", "Lazy Attention degrades less than the standard Transformer (RoPE 1.5e5 against 1e4)",
       "substantially smaller degradation (paper, section 5.5)"},
      {"lazy", "softmax-rope150k", "Lazy Attention degrades less than softmax at the same RoPE base 1.5e5",
       "substantially smaller degradation (paper, section 5.5)"},
      {"lazy-rope10k", "softmax", "Lazy Attention degrades less than softmax at the same RoPE base 1e4",
       "substantially smaller degradation (paper, section 5.5)"},
      {"lazy", "no-positional", "Lazy Attention degrades less than without its distance bias and larger base",
       "removing position-aware biases severely hurts long-length performance (paper, section 5.5)"}};
  for (const char* text : {"heldout", "wikitext", "lambada_openai"}) {
    for (const auto& pair : pairs) {
      for (size_t i = 1; i < all.size(); ++i) {
        const Claim claim{fmt::format("{}, {} tokens beside the training length {}: {} (loss at {} minus at {}, "
                                      "difference of the two models)",
                                      text, all[i], all[0], pair.words, all[i], all[0]),
                          pair.paper, "nats a token", over(results, "stretches of text")};
        out.push_back(judge(claim,
                            results.paired_change(pair.a, pair.b, StepKind::lengths, fmt::format("{}/{}", text, all[0]),
                                                  fmt::format("{}/{}", text, all[i])),
                            Sign::below_zero,
                            "this text was not measured: its file is not below --data, or it is too short"));
      }
    }
  }
  const std::string longest = fmt::format("collapse/{}", all.back());
  out.push_back(judge({fmt::format("representational collapse at {} tokens (decision A22): final hidden states of Lazy "
                                   "Attention are less alike than its twin's "
                                   "(mean pairwise cosine, difference)",
                                   all.back()),
                       "the full design postpones representational collapse (paper, section 5.5; no measure published)",
                       "cosine", over(results, "texts")},
                      results.paired_difference("lazy", "softmax-rope150k", StepKind::lengths, longest + "/cosine"),
                      Sign::below_zero, "not measured"));
  out.push_back(
      judge({fmt::format("the same by effective rank of the final hidden states at {} tokens (difference)", all.back()),
             "as above", "effective rank", over(results, "texts")},
            results.paired_difference("lazy", "softmax-rope150k", StepKind::lengths, longest + "/effective_rank"),
            Sign::above_zero, "not measured"));
  return out;
}

}  // namespace

Recipe figure6() {
  return {"fig6",
          "length extrapolation",
          "paper, Figure 6 and section 5.5",
          plan_lengths,
          judge_lengths,
          {},
          {"The figure has no numbers in the paper's text, so that orderings are tested, not values.",
           "Every text is one stream, cut into stretches; each stretch is predicted in windows of every length, so "
           "that all lengths see the same "
           "targets. LAMBADA's items are joined (decision A10).",
           "Collapse is measured on the final hidden states alone, not layer by layer."}};
}

}  // namespace lazy::repro
