// The streaming check: who needs the first tokens? Full cache, window, window and first four tokens, of Lazy Attention
// and its twin.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/statistics.h"
#include "repro/recipe.h"

namespace lazy::repro {
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
  out.push_back(judge_sign(softmax, bootstrap_mean(needs["softmax-rope150k"]), Sign::above_zero));
  std::vector<double> difference = needs["lazy"];
  for (size_t n = 0; n < difference.size(); ++n) difference[n] -= needs["softmax-rope150k"][n];
  out.push_back(judge_sign(less, bootstrap_mean(difference), Sign::below_zero));
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
                .study_trained("streaming", kStreaming);
            if (!c.models.empty()) plan.study("streaming", kStreaming);
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
