#include "repro/cost.h"

#include <map>

#include "core/error.h"
#include "repro/configs.h"
#include "repro/studies/study.h"
#include "repro/utilization.h"
#include "train/planning/speed.h"
#include "train/throughput.h"

namespace lazy::repro {
namespace {

constexpr double kGpuTflops = 989;  // of an H200, bf16
// 10^12 operations a second of tiny trainings (docs/repro.md): one thread on a machine that other work kept busy.
constexpr double kCpuTflops = 0.025;
constexpr double kEachSeconds = 2;  // loading a model, making its first step

train::SpeedSource speed(const Scale& scale, const ModelConfig& model) {
  train::SpeedSource source;
  source.mfu = scale.name == "tiny" ? 1 : gpu_utilization(model, scale.is_paper());
  source.peak_tflops = scale.name == "tiny" ? kCpuTflops : kGpuTflops;
  return source;
}

// Tokens that a measurement passes through the model.
double measured_tokens(const Step& step, int64_t context) {
  const Json& s = step.settings;
  const auto n = static_cast<double>(context);
  switch (step.kind) {
    case StepKind::heldout:
      return s.at("sequences").get<double>() * n;
    case StepKind::sinks:
      return s.at("samples").get<double>() * n;
    case StepKind::domain:
      return 2 * s.at("blocks").get<double>() * n;
    case StepKind::lengths:
      return 3 * s.at("blocks").get<double>() * s.at("lengths").back().get<double>() *
             static_cast<double>(s.at("lengths").size());
    case StepKind::tasks:
      return 8e6;  // all nine full sets, choices included
    default:
      return 0;
  }
}

}  // namespace

std::string machine(const Scale& scale) { return scale.name == "tiny" ? "one busy CPU core" : "one H200"; }

std::string basis(const Scale& scale) {
  return scale.name == "tiny"
             ? "arithmetic over 0.025 TFLOP/s, measured with one thread on a busy machine (docs/repro.md)"
             : "arithmetic over the share of an H200's 989 TFLOP/s at which each mixer and normalizer was measured: "
               "35 % for softmax and Elastic-Softmax, 2 to 38 % for the others (docs/training.md, docs/mixers.md)";
}

Cost cost(const Recipe& recipe, const Conditions& conditions, const std::filesystem::path& configs) {
  write_configs(configs);
  Cost total;
  struct Trained {
    double seconds_per_token = 0;
    int64_t context = 0;
  };
  std::map<std::string, Trained> models;
  for (const Step& step : recipe.plan(conditions)) {
    if (step.kind == StepKind::latency || step.kind == StepKind::datasets) {
      total.seconds += step.kind == StepKind::latency ? 60 : 1;
      continue;
    }
    if (step.kind == StepKind::study) {
      total.seconds += study_seconds(step.settings);
      continue;
    }
    total.seconds += step.kind == StepKind::learned ? 0.1 : kEachSeconds;
    if (step.kind == StepKind::train) {
      const bool tiny = conditions.scale.name == "tiny";
      const auto config =
          train_config(step, configs, "corpus", "run",
                       tiny ? std::vector<std::string>{"model.vocab_size=2048"} : std::vector<std::string>{});
      Trained& trained = models[step.id];
      trained = {1 / train::expected_speed(config, speed(conditions.scale, config.model))->tokens_per_second,
                 config.seq_len};
      if (!given_folder(step).empty()) continue;
      const auto tokens = static_cast<double>(config.tokens_per_step() * config.steps);
      ++total.trainings;
      total.tokens += tokens;
      total.seconds += tokens * trained.seconds_per_token;
    } else {
      const Trained& trained = models.at(step.model);
      total.seconds += measured_tokens(step, trained.context) * trained.seconds_per_token / 3;  // forward only
    }
  }
  return total;
}

}  // namespace lazy::repro
