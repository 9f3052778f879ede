// Long texts: Figure 6 of the paper (length extrapolation) and streaming caches.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/statistics.h"
#include "repro/recipe.h"

namespace lazy::repro {

// Figure 6: perplexity beyond the training length.

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
                            ExpectedSign::negative,
                            "this text was not measured: its file is not below --data, or it is too short"));
      }
    }
  }
  const std::string longest = fmt::format("collapse/{}", all.back());
  out.push_back(judge({fmt::format("representational collapse at {} tokens: final hidden states of Lazy "
                                   "Attention are less alike than its twin's "
                                   "(mean pairwise cosine, difference)",
                                   all.back()),
                       "the full design postpones representational collapse (paper, section 5.5; no measure published)",
                       "cosine", over(results, "texts")},
                      results.paired_difference("lazy", "softmax-rope150k", StepKind::lengths, longest + "/cosine"),
                      ExpectedSign::negative, "not measured"));
  out.push_back(
      judge({fmt::format("the same by effective rank of the final hidden states at {} tokens (difference)", all.back()),
             "as above", "effective rank", over(results, "texts")},
            results.paired_difference("lazy", "softmax-rope150k", StepKind::lengths, longest + "/effective_rank"),
            ExpectedSign::positive, "not measured"));
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
           "targets. LAMBADA's items are joined.",
           "Collapse is measured on the final hidden states alone, not layer by layer."}};
}

// StreamingLLM's check: losses with the full cache, a sliding window, and the window with the first four tokens, of
// Lazy Attention and its twin.

namespace {

const Json kStreaming{{"texts", 8}, {"times", 6}, {"window", 1024}};

std::vector<double> cost_of(const Json& values, const char* cache) {
  auto out = values.at(cache).get<std::vector<double>>();
  const auto full = values.at("full").get<std::vector<double>>();
  for (size_t n = 0; n < out.size(); ++n) out[n] -= full[n];
  return out;
}

std::vector<Finding> judge_streaming(const Conditions& c, const Results& results) {
  std::vector<std::string> models{"lazy", "softmax-rope150k"};
  for (const auto& [model, folder] : c.models) {
    if (std::find(models.begin(), models.end(), model) == models.end()) models.push_back(model);
  }
  std::vector<Finding> out;
  std::map<std::string, std::vector<double>> needs;  // what the first four tokens save
  for (const std::string& model : models) {
    const Json* found = results.find(model + ".streaming");
    if (!found) continue;
    const Json& v = *found;
    const auto value = [&](const std::string& text, const std::vector<double>& numbers, const char* unit) {
      out.push_back(
          judge_value({fmt::format("{}: {}", model, text), "nothing is published of these models", unit, "texts"},
                      bootstrap_mean(numbers), 0, "no figure is published"));
    };
    std::vector<double> perplexity;
    for (const double loss : v.at("full").get<std::vector<double>>()) perplexity.push_back(std::exp(loss));
    value(fmt::format("perplexity with all keys, {} tokens", v.at("length").get<int64_t>()), perplexity, "");
    value(fmt::format("loss with a window of {} alone, above all keys", v.at("window_tokens").get<int64_t>()),
          cost_of(v, "window"), "nats a token");
    value("loss with the window and the first four tokens, above all keys", cost_of(v, "first"), "nats a token");
    auto& need = needs[model] = v.at("window").get<std::vector<double>>();
    const auto first = v.at("first").get<std::vector<double>>();
    for (size_t n = 0; n < need.size(); ++n) need[n] -= first[n];
  }
  const Claim softmax{"softmax: the window alone loses more than with the first four tokens",
                      "perplexity collapses without the first tokens (StreamingLLM, cited by the paper)",
                      "nats a token", "texts"};
  const Claim less{
      "Lazy Attention needs the first four tokens less than its softmax twin (what they save, Lazy minus softmax)",
      "a model without a sink should not need them", "nats a token", "texts"};
  if (!needs.contains("lazy") || !needs.contains("softmax-rope150k"))
    return {undecided(softmax, "the models were not measured"), undecided(less, "the models were not measured")};
  out.push_back(judge_sign(softmax, bootstrap_mean(needs["softmax-rope150k"]), ExpectedSign::positive));
  std::vector<double> difference = needs["lazy"];
  for (size_t n = 0; n < difference.size(); ++n) difference[n] -= needs["softmax-rope150k"][n];
  out.push_back(judge_sign(less, bootstrap_mean(difference), ExpectedSign::negative));
  return out;
}

}  // namespace

Recipe streaming_check() {
  return {"streaming",
          "long text with all keys, a window, and the window with the first four tokens",
          "StreamingLLM's check; paper, section 3.3",
          [](const Conditions& c) {
            Plan plan(c);
            plan.train(lazy_model(c.scale, Budget::main))
                .train(softmax_twin(Budget::main))
                .experiment_on_trained("streaming", kStreaming);
            if (!c.models.empty()) plan.experiment("streaming", kStreaming);
            return plan.steps();
          },
          judge_streaming,
          {},
          {"Texts are six times the window, which is the training length, at most 1024. Only tokens beyond the first "
           "window are counted: before that all caches hold the same.",
           "Positions and visible counts go by the place in the cache. All keys means all of the text, far beyond the "
           "training length: that figure is length extrapolation, not the caches'.",
           "Learned positions and ALiBi cannot be streamed here."}};
}

}  // namespace lazy::repro
