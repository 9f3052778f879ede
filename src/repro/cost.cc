#include "repro/cost.h"

#include <algorithm>
#include <array>
#include <map>

#include "core/error.h"
#include "ops/normalizers.h"
#include "repro/configs.h"

namespace lazy::repro {

namespace {

// Approximate duration of an experiment in seconds on two CPU cores with a model of 124M parameters.
double experiment_seconds(const std::string& study) {
  static const std::map<std::string, double> seconds{
      {"gamma", 10},         {"delta", 60},      {"positions", 30}, {"interventions", 900},
      {"toy", 20},           {"trigger", 20},    {"outliers", 10},  {"quantization", 20},
      {"cache", 60},         {"repetition", 60}, {"vectors", 10},   {"streaming", 60},
      {"model_latency", 60}, {"speed", 60},      {"spread", 10},    {"mask", 10}};
  return seconds.at(study);
}

struct Measured {
  const char* mixer;
  double small, large;
};

// Measured utilization by mixer. Column `small` (55M parameters): from the tokens/s of the trainings in
// docs/results/table1.md; for TTT and Titans, from the tokens/s of `lazy bench train`. Column `large` (340M
// parameters): `lazy bench mixers` (docs/reference/figures.md). TTT and Titans were not measured at 340M parameters, so
// the value at 55M is used.
constexpr std::array<Measured, 10> kMixers{{{"retnet", 0.31, 0.38},
                                            {"mamba2", 0.15, 0.22},
                                            {"delta_net", 0.27, 0.37},
                                            {"gated_delta_net", 0.25, 0.24},
                                            {"ttt_linear", 0.30, 0.30},
                                            {"ttt_mlp", 0.11, 0.11},
                                            {"titans_lmm", 0.11, 0.11},
                                            {"titans_mac", 0.054, 0.054},
                                            {"titans_mag", 0.092, 0.092},
                                            {"titans_mal", 0.095, 0.095}}};

// Utilization of softmax and Elastic-Softmax: 0.37 (Lazy, 55M parameters), 0.40 (Lazy, 340M) and 0.45 (softmax); see
// docs/guides/training.md. kPortable applies to normalizers that only the portable kernels support; sparsemax trains at
// 0.27 with 55M parameters.
constexpr double kAttention = 0.37, kPortable = 0.26;

}  // namespace

double gpu_utilization(const ModelConfig& model, bool large) {
  if (model.all_attention()) {
    const bool portable = ops::traits(model.attention.normalizer).family != ops::NormalizerFamily::exponential;
    return portable ? kPortable : kAttention;
  }
  const auto found = std::find_if(kMixers.begin(), kMixers.end(), [&](const Measured& m) {
    return name(model.mixer.type) == std::string_view(m.mixer);
  });
  if (found == kMixers.end())
    fail("repro", "expected a mixer with a measured training speed, found {}", name(model.mixer.type));
  return large ? found->large : found->small;
}

namespace {

constexpr double kGpuTflops = 989;  // peak of an H200 in bf16
// Measured TFLOP/s of trainings at tiny scale, with one thread on a busy machine.
constexpr double kCpuTflops = 0.025;
constexpr double kEachSeconds = 2;  // time to load a model and run its first step

// Number of tokens of the full benchmark sets, including answer choices, in millions.
constexpr std::array<std::pair<const char*, double>, 9> kTaskTokens{{{"wikitext", 0.35},
                                                                     {"lambada_openai", 0.5},
                                                                     {"piqa", 0.15},
                                                                     {"hellaswag", 4.2},
                                                                     {"winogrande", 0.1},
                                                                     {"arc_easy", 0.4},
                                                                     {"arc_challenge", 0.2},
                                                                     {"social_iqa", 0.3},
                                                                     {"boolq", 1.0}}};

// Returns the number of tokens of one task, or of all tasks if the name is empty.
double task_tokens(const std::string& task) {
  double sum = 0;
  for (const auto& [name, millions] : kTaskTokens) sum += task.empty() || task == name ? 1e6 * millions : 0;
  return sum;
}

// Returns the number of tokens that a measurement passes through the model.
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
      return 3 * s.at("blocks").get<double>() * s.value("stretch", s.at("lengths").back().get<double>()) *
             static_cast<double>(s.at("lengths").size());
    case StepKind::tasks:
      return task_tokens(s.value("task", std::string()));
    default:
      return 0;
  }
}

}  // namespace

train::SpeedSource speed_source(const Scale& scale, const ModelConfig& model) {
  train::SpeedSource source;
  source.mfu = scale.name == "tiny" ? 1 : gpu_utilization(model, scale.is_paper());
  source.peak_tflops = scale.name == "tiny" ? kCpuTflops : kGpuTflops;
  return source;
}

std::string machine(const Scale& scale) { return scale.name == "tiny" ? "one busy CPU core" : "one H200"; }

std::string basis(const Scale& scale) {
  return scale.name == "tiny"
             ? "computed for 0.025 TFLOP/s, the speed measured with one thread on a busy machine"
             : "computed from the measured fraction of an H200's 989 TFLOP/s for each mixer and normalizer: "
               "37 % for softmax and Elastic-Softmax, 5 to 38 % for the others (docs/guides/training.md, "
               "docs/reference/figures.md)";
}

Cost cost(const std::vector<Step>& plan, const Conditions& conditions, const std::filesystem::path& configs) {
  write_configs(configs);
  Cost total;
  struct Trained {
    double seconds_per_token = 0;
    int64_t context = 0;
  };
  std::map<std::string, Trained> models;
  const auto of_model = [&total](const std::string& id) -> ModelCost& {
    const std::string model = id.substr(0, id.find('.'));
    for (ModelCost& m : total.models) {
      if (m.model == model) return m;
    }
    total.models.push_back({model});
    return total.models.back();
  };
  for (const Step& step : plan) {
    if (step.kind == StepKind::latency || step.kind == StepKind::datasets) {
      total.seconds += step.kind == StepKind::latency ? 60 : 1;
      continue;
    }
    if (step.kind == StepKind::experiment) {
      total.seconds += experiment_seconds(step.settings.at("study").get<std::string>());
      continue;
    }
    const double before = total.seconds;
    total.seconds += step.kind == StepKind::learned ? 0.1 : kEachSeconds;
    if (step.kind == StepKind::train) {
      const bool tiny = conditions.scale.name == "tiny";
      const auto config =
          train_config(step, configs, "corpus", "run",
                       tiny ? std::vector<std::string>{"model.vocab_size=2048"} : std::vector<std::string>{});
      Trained& trained = models[step.id];
      trained = {1 / train::expected_speed(config, speed_source(conditions.scale, config.model))->tokens_per_second,
                 config.seq_len};
      if (!given_folder(step).empty()) continue;
      const auto tokens = static_cast<double>(config.tokens_per_step() * config.steps);
      ++total.trainings;
      total.tokens += tokens;
      total.seconds += tokens * trained.seconds_per_token;
      ModelCost& m = of_model(step.id);
      ++m.trainings;
      m.tokens += tokens;
      m.tokens_per_second = 1 / trained.seconds_per_token;
      m.training += total.seconds - before;
    } else {
      const Trained& trained = models.at(step.model);
      // A third of the cost of training, because only the forward pass runs.
      total.seconds += measured_tokens(step, trained.context) * trained.seconds_per_token / 3;
      of_model(step.id).measuring += total.seconds - before;
    }
  }
  return total;
}

Cost cost(const Recipe& recipe, const Conditions& conditions, const std::filesystem::path& configs) {
  return cost(recipe.plan(conditions), conditions, configs);
}

}  // namespace lazy::repro
