// The five interventions of the GPT-2 study, with their controls, in all layers at once and one layer at a time: what
// each leaves of the attention to the first position.
#include <ATen/ATen.h>

#include <algorithm>

#include "core/progress.h"
#include "core/random.h"
#include "core/stop.h"
#include "repro/studies/study.h"
#include "sinks/interventions.h"
#include "sinks/positions.h"
#include "sinks/query_bias.h"
#include "sinks/weight_measures.h"

namespace lazy::repro {
namespace {

constexpr int64_t kMapLength = 32;

// What one condition leaves: attention to the first and second position, mean over heads and over the queries behind
// them.
struct Attention {
  std::vector<std::vector<double>> first, second;  // [text][layer]
  std::vector<std::vector<double>>
      sink;                     // [text][layer], share of heads whose mean weight on the first key exceeds 0.3
  std::vector<at::Tensor> map;  // [layer], mean over heads and texts
};

Attention attention_under(StudySubject& subject, const sinks::Interventions& interventions, size_t texts,
                          bool with_map) {
  const at::NoGradGuard no_grad;
  const sinks::Applied applied(subject.model, interventions);
  Attention out;
  Probes probes = applied.probes();
  probes.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
    const at::Tensor heads = weights[0];  // (heads, queries, keys)
    const auto layer = static_cast<size_t>(sinks::layer_of(name));
    out.first.back().push_back(heads.slice(1, 1).select(2, 0).mean().item<double>());
    out.second.back().push_back(heads.slice(1, 2).select(2, 1).mean().item<double>());
    out.sink.back().push_back(heads.select(2, 0).mean(1).gt(0.3).to(at::kDouble).mean().item<double>());
    if (!with_map) return;
    const int64_t shown = std::min(kMapLength, heads.size(1));
    const at::Tensor map = heads.mean(0).slice(0, 0, shown).slice(1, 0, shown).to(at::kCPU) / double(texts);
    if (out.map.size() <= layer) out.map.resize(layer + 1);
    out.map[layer] = out.map[layer].defined() ? out.map[layer] + map : map;
  });
  ForwardOptions options;
  options.probes = &probes;
  for (size_t n = 0; n < texts; ++n) {
    end_if_stopped("repro");
    out.first.emplace_back();
    out.second.emplace_back();
    out.sink.emplace_back();
    subject.model.forward(at::tensor(subject.texts[n], at::kLong).unsqueeze(0).to(subject.model.device()), options);
  }
  return out;
}

Json to_json(const Attention& a) {
  Json out{{"first", a.first}, {"second", a.second}, {"sink", a.sink}};
  for (const at::Tensor& map : a.map) out["map"].push_back(rows_of(map));
  return out;
}

// Zero columns of W_k in some layers, or b_Q.
void zero_key_columns(sinks::WeightEdits& edits, const LanguageModel& model, int64_t layer,
                      const std::vector<int64_t>& columns) {
  const at::Tensor& k = model.projections(layer).k;
  edits.write(k, k.detach().index_fill(1, at::tensor(columns, at::kLong).to(k.device()), 0));
}
void zero_query_bias(sinks::WeightEdits& edits, const LanguageModel& model, int64_t layer) {
  const at::Tensor& b = model.projections(layer).q_bias;
  edits.write(b, at::zeros_like(b));
}

template <typename Edit>
Attention with_weights(StudySubject& subject, int64_t first, int64_t last, size_t texts, bool with_map,
                       const Edit& edit) {
  sinks::WeightEdits edits;
  for (int64_t layer = first; layer < last; ++layer) edit(edits, layer);
  return attention_under(subject, {}, texts, with_map);
}

// The attention to the first position in one layer alone.
std::vector<double> in_layer(const Attention& a, int64_t layer) {
  std::vector<double> out;
  for (const auto& text : a.first) out.push_back(text[static_cast<size_t>(layer)]);
  return out;
}

}  // namespace

Json interventions_study(const StudyRun& run) {
  const Json& s = run.settings;
  StudySubject subject = study_subject(run, s.at("texts").get<int64_t>(), s.at("length").get<int64_t>());
  LanguageModel& model = subject.model;
  sinks::require_query_bias(model);
  const int64_t layers = model.config().num_layers, width = model.config().hidden_size;
  const size_t texts = subject.texts.size(), few = std::min(texts, s.at("few_texts").get<size_t>());
  const auto pairs = s.at("random_pairs").get<int64_t>();
  // The coordinates at which EPE_1 is massive, and pairs of others that are not among its largest.
  const at::Tensor order = sinks::effective_positions(model, sinks::EffectivePositions::literal)[0]
                               .abs()
                               .argsort(0, /*descending=*/true)
                               .to(at::kCPU);
  const std::vector<int64_t> massive{order[0].item<int64_t>(), order[1].item<int64_t>()};
  Json out{{"layers", layers}, {"texts", texts}, {"few_texts", few}, {"bos", subject.bos}, {"massive", massive}};
  const int64_t steps = 8 + pairs + 4 * layers;
  std::unique_ptr<Progress> progress;
  if (run.progress) progress = std::make_unique<Progress>("interventions", static_cast<uint64_t>(steps), "conditions");
  uint64_t done = 0;
  const auto tick = [&] {
    if (progress) progress->update(++done);
  };
  const auto record = [&](const char* name, const Attention& a) {
    out["conditions"][name] = to_json(a);
    tick();
  };
  using sinks::Interventions;
  const std::string away = "=epe[1] - epe[0]", there = "=epe[0] - epe[1]";
  record("none", attention_under(subject, {}, texts, true));
  record("1", with_weights(subject, 0, layers, texts, true,
                           [&](auto& edits, int64_t layer) { zero_query_bias(edits, model, layer); }));
  record("2", attention_under(subject, Interventions().add("layers.1.residual[0]" + away), texts, true));
  record("3", attention_under(subject,
                              Interventions().add("layers.1.residual[0]" + away).add("layers.1.residual[1]" + there),
                              texts, true));
  record("4", attention_under(subject, Interventions().set_zero("embedding.tokens[0]"), texts, true));
  record("5", with_weights(subject, 0, layers, texts, true,
                           [&](auto& edits, int64_t layer) { zero_key_columns(edits, model, layer, massive); }));
  record("2'", attention_under(subject, Interventions().replace("embedding.positions[0]=@[1]"), texts, true));
  record("3'", attention_under(subject, Interventions().swap_positions("embedding.positions=0,1"), texts, true));
  Random random(1);
  Json control = Json::array();
  for (int64_t n = 0; n < pairs; ++n) {
    // Outside the ten largest coordinates of EPE_1, or the largest two of a narrow model.
    const int64_t top = std::min<int64_t>(10, width / 4);
    std::vector<int64_t> pair;
    while (pair.size() < 2) {
      const int64_t coordinate =
          order[top + static_cast<int64_t>(random.below(static_cast<uint64_t>(width - top)))].item<int64_t>();
      if (pair.empty() || pair[0] != coordinate) pair.push_back(coordinate);
    }
    const Attention a = with_weights(subject, 0, layers, n == 0 ? texts : few, n == 0,
                                     [&](auto& edits, int64_t layer) { zero_key_columns(edits, model, layer, pair); });
    Json of_pair = to_json(a);
    of_pair["coordinates"] = pair;
    control.push_back(of_pair);
    tick();
  }
  out["control"] = control;
  // One layer at a time: what the layer that is changed does itself.
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto one = [&](const char* name, const Attention& a) {
      out["single"][name].push_back(in_layer(a, layer));
      tick();
    };
    one("1", with_weights(subject, layer, layer + 1, few, false,
                          [&](auto& edits, int64_t l) { zero_query_bias(edits, model, l); }));
    one("5", with_weights(subject, layer, layer + 1, few, false,
                          [&](auto& edits, int64_t l) { zero_key_columns(edits, model, l, massive); }));
    if (layer == 0) continue;
    const std::string here = "layers." + std::to_string(layer) + ".residual";
    one("2", attention_under(subject, Interventions().add(here + "[0]" + away), few, false));
    one("3", attention_under(subject, Interventions().add(here + "[0]" + away).add(here + "[1]" + there), few, false));
  }
  if (progress) progress->finish();
  return out;
}

}  // namespace lazy::repro
