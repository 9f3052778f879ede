// Recipes with models that train in seconds, for the tests and for the program run_small_recipe that the tests start.
#pragma once
#include <filesystem>
#include <string>
#include <utility>

#include "repro/recipe_file.h"
#include "repro/runner.h"

namespace lazy::repro {

inline constexpr const char* kProbe = R"(
[recipe]
title = "a probe"
source = "nothing"

[[model]]
name = "a"
kind = "lazy"
overrides = ["model.distance_bias_window=16", OVERRIDES]

[[model]]
name = "b"
kind = "transformer"
overrides = ["model.distance_bias_window=0", OVERRIDES]

MEASURES

[[claim]]
text = "a differs"
paper = "said"
measure = "loss"
over = "a"
under = "b"
side = "below"
bound = 0
without = "missing"
)";

inline const std::string kTextMeasures = R"(
[[step]]
kind = "heldout"
settings = ["sequences=8"]
[[step]]
kind = "sinks"
settings = ["samples=4"]
)";
inline const std::string kProbeMeasures = kTextMeasures + R"(
[[step]]
kind = "learned"
[[step]]
kind = "lengths"
settings = ["lengths=[32,64]", "blocks=3"]
[[step]]
kind = "domain"
settings = ["blocks=3"]
[[step]]
kind = "latency"
settings = ["what=\"ever\""]
)";

// A recipe with two models, several measurements, and a latency step whose implementation the test provides.
inline Recipe small_recipe(int steps, const std::string& measures = kProbeMeasures) {
  const std::string overrides =
      R"("model.hidden_size=32", "model.num_hidden_layers=2", "model.num_heads=2", "model.intermediate_size=64",
  "model.max_position_embeddings=32", "training.seq_len=32", "training.batch_size=4", "checkpoint.every=5",
  "metrics.log_every=1", "lr_scheduler.warmup_steps=2", "training.steps=)" +
      std::to_string(steps) + "\"";
  std::string text = kProbe;
  for (const auto& [word, value] :
       {std::pair{"OVERRIDES", overrides}, {"OVERRIDES", overrides}, {"MEASURES", measures}})
    text.replace(text.find(word), std::string(word).size(), value);
  return recipe_of(read_recipe(text, "probe.toml"));
}

inline RunOptions small_recipe_options(const std::filesystem::path& folder, const std::string& output = "out") {
  RunOptions o;
  o.conditions = {find_scale("tiny"), folder / "corpus", {}, {}, 1, "cpu"};
  o.output = folder / output;
  o.progress = false;
  o.latency = [](const Json&) { return Json{{"forward", 1}}; };
  return o;
}

inline constexpr int kWorkerSteps = 60;

// A comparison similar to table1: a model whose learning rate is chosen by two trials, measurements in pieces, and an
// order of the models that is compared with a published order.
inline const std::string kComparison = R"(
[recipe]
title = "a comparison"
source = "nothing"
models = ["learner", "softmax"]
tiny = ["model.hidden_size=32", "model.num_hidden_layers=1", "model.intermediate_size=64", "training.seq_len=32",
  "model.max_position_embeddings=32", "training.batch_size=4", "training.steps=8", "checkpoint.every=3",
  "metrics.log_every=1", "lr_scheduler.warmup_steps=2"]
means_tiny = "a model of seconds"

[[model]]
name = "learner"
kind = "ttt_linear"
tiny = ["mixer.heads=2", "mixer.gate=false"]
alternatives_tiny = ["optimizer.lr=1e-9", "optimizer.lr=1e-2"]
trial = ["training.steps=4"]

[[model]]
name = "softmax"
kind = "transformer"
tiny = ["model.num_heads=2"]

)" + kTextMeasures + R"([[step]]
kind = "tasks"
for_task = ["wikitext", "boolq", "piqa"]
settings = ["task=\"{task}\""]
piece = "{task}"
[[step]]
kind = "tasks"
settings = ["task=\"wikitext\"", "bos_every_window=true"]
piece = "wikitext-bos"
[[step]]
kind = "lengths"
for_length = ["32", "128"]
settings = ["lengths=[{length}]", "stretch=128", "blocks=2"]
piece = "{length}"

[published]
title = "Published"
[[column]]
title = "ppl"
measure = "tasks:wikitext/word_perplexity/value"
[[row]]
name = "Softmax 1M"
model = "softmax"
values = [20]
[[row]]
name = "Learner 1M"
model = "learner"
values = [10]
[[order]]
title = "Order by loss"
measure = "loss"
first = "lowest"
column = "ppl"
groups = ["1M", "2M"]
[[order]]
title = "Order by perplexity"
first = "lowest"
column = "ppl"
)";

// A run stores a pointer to its recipe, so the recipe must be static.
inline const Recipe& comparison() {
  static const Recipe recipe = recipe_of(read_recipe(kComparison, "comparison.toml"));
  return recipe;
}

inline RunOptions comparison_options(const std::filesystem::path& folder, const std::string& output) {
  RunOptions o = small_recipe_options(folder, output);
  o.conditions.data = folder / "data";
  o.conditions.seeds = 2;
  return o;
}

}  // namespace lazy::repro
