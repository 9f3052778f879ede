#include "repro/plan.h"

namespace lazy::repro {
namespace {

using Overrides = std::vector<std::string>;

struct MixerRow {
  const char *name, *kind;
  std::vector<Budget> budgets;  // of its rows in the paper
  Overrides paper, tiny, small;
};

const std::vector<MixerRow>& mixer_rows() {
  const Overrides titans = {"optimizer.weight_decay=0.1"};  // its own recipe
  static const std::vector<MixerRow> all{
      {"gated-deltanet",
       "gated_delta_net",
       {Budget::main, Budget::large},
       {},
       {"model.intermediate_size=160"},
       {"model.intermediate_size=1056"}},
      {"titans-mag",
       "titans_mag",
       {Budget::main},
       titans,
       {"model.intermediate_size=80", "model.num_heads=4", "model.window_size=64", "mixer.memory_expansion=1"},
       {"model.intermediate_size=712", "model.num_heads=8", "model.window_size=128"}},
      {"retnet",
       "retnet",
       {Budget::large},
       {},
       {"model.intermediate_size=88", "mixer.heads=4"},
       {"model.intermediate_size=728", "mixer.heads=4"}},
      {"mamba2",
       "mamba2",
       {Budget::large},
       {},
       {"model.num_hidden_layers=6", "mixer.state_size=32", "model.intermediate_size=0"},
       {"model.num_hidden_layers=22", "model.intermediate_size=0"}},
      {"deltanet",
       "delta_net",
       {Budget::large},
       {},
       {"model.intermediate_size=248", "mixer.heads=2"},
       {"model.intermediate_size=1400"}},
      {"ttt-linear",
       "ttt_linear",
       {Budget::large},
       {},
       {"model.intermediate_size=232", "mixer.gate=false"},
       {"model.intermediate_size=1384", "mixer.gate=false"}},
      {"titans-lmm",
       "titans_lmm",
       {Budget::large},
       titans,
       {"model.intermediate_size=168", "mixer.memory_expansion=1"},
       {"model.intermediate_size=1056"}}};
  return all;
}

}  // namespace

std::vector<Model> mixer_models(const Scale& scale) {
  std::vector<Model> models;
  for (const MixerRow& row : mixer_rows()) {
    if (!scale.is_paper()) {
      models.push_back({row.name, row.kind, scale.name == "tiny" ? row.tiny : row.small, Budget::main});
      continue;
    }
    for (const Budget budget : row.budgets) {
      models.push_back({row.name + std::string(budget == Budget::large ? "-760m" : ""), row.kind, row.paper, budget});
    }
  }
  return models;
}

}  // namespace lazy::repro
