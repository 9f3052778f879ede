// Norms and variances of queries, keys, values and hidden states, token by token, of the paper's sentence and of one
// token repeated: as its tables have them, and as they should be read (SPEC section 0).
#include <ATen/ATen.h>

#include "core/text.h"
#include "model/probes.h"
#include "repro/studies/study.h"
#include "sinks/state_measures.h"

namespace lazy::repro {
namespace {

constexpr int64_t kTokens = 15;
constexpr const char* kSentence = "Once upon a time, in a land far, far away, there lived a";

// What a row of a table is, by its place in the model: projections as they leave the product, and as attention sees
// them.
constexpr const char* kPlaces[] = {"attention.q.projected", "attention.k.projected", "attention.v", "attention.q",
                                   "attention.k",           "attention.input",       "residual"};

Json statistics_of(LanguageModel& model, const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_grad;
  std::vector<sinks::VectorStatistics> statistics;
  for (const char* place : kPlaces) statistics.emplace_back(place);
  Probes probes;
  for (auto& s : statistics) s.watch(probes);
  ForwardOptions options;
  options.probes = &probes;
  model.forward(at::tensor(ids, at::kLong).unsqueeze(0).to(model.device()), options);
  Json out = Json::object();
  for (const auto& s : statistics) {
    const auto result = s.result();
    for (const auto& [name, values] : {std::pair{"norm", result.norm}, {"variance", result.variance}}) {
      Json layers = Json::array();
      for (int64_t layer = 0; layer < values.size(0); ++layer) layers.push_back(rows_of(values[layer]));
      out[s.place()][name] = layers;  // [layer][head][position]
    }
  }
  return out;
}

}  // namespace

Json vectors_study(const StudyRun& run) {
  const auto tokenizer = load_tokenizer(run.settings.at("model").get<std::string>());
  LanguageModel model = study_model(run);
  const auto encoded = tokenizer->encode(kSentence), word = tokenizer->encode(" sink");
  std::vector<int64_t> natural(encoded.begin(),
                               encoded.begin() + std::min<int64_t>(kTokens, static_cast<int64_t>(encoded.size())));
  const std::vector<int64_t> repeated(natural.size(), word.back());
  std::vector<std::string> tokens;
  for (const int64_t id : natural) tokens.push_back(to_valid_utf8(tokenizer->piece(static_cast<int32_t>(id))));
  const ModelConfig& c = model.config();
  return {{"family", c.family},
          {"layers", c.num_layers},
          {"heads", c.num_heads},
          {"kv_heads", c.num_kv_heads},
          {"ids", natural},
          {"tokens", tokens},
          {"repeated_id", word.back()},
          {"natural", statistics_of(model, natural)},
          {"repeated", statistics_of(model, repeated)}};
}

}  // namespace lazy::repro
