// `lazy train`: trains a model; see docs/reference/configuration.md and docs/reference/run-directory.md.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/config.h"
#include "core/config_files.h"
#include "core/error.h"
#include "core/log.h"
#include "core/stop.h"
#include "model/device.h"
#include "train/config.h"
#include "train/plan.h"
#include "train/trainer.h"

namespace {

constexpr const char* kPlannedGpu = "H200";  // GPU that --dry-run assumes on machines without a GPU
constexpr double kH200Gib = 139;

struct TrainArguments {
  std::string config, model, recipe, from;
  std::vector<std::string> settings;
  bool resume = false;
  bool dry_run = false, json = false;
  lazy::train::PlanOptions plan;
  std::string measured;
  double mfu = 0;
};

void print_plan(const lazy::train::TrainConfig& config, TrainArguments& arguments) {
  auto& speed = arguments.plan.speed;
  if (!arguments.measured.empty()) speed.measured = arguments.measured;
  if (arguments.mfu > 0) speed.mfu = arguments.mfu;
  std::string& gpu = arguments.plan.gpu;
  if (gpu.empty()) gpu = lazy::gpu_name(config.device);
  if (gpu.empty()) {
    gpu = kPlannedGpu;
    lazy::log::info("training.device is {} here; the plan assumes an {} (--gpu selects another GPU)", config.device,
                    gpu);
  }
  if (speed.peak_tflops == 0) {
    speed.peak_tflops = config.peak_tflops > 0 ? config.peak_tflops : lazy::peak_bf16_tflops_of(gpu);
  }
  if (speed.peak_tflops == 0) {
    lazy::fail("plan", "--gpu {}: its TFLOP/s are unknown; add --peak-tflops and --gpu-memory", gpu);
  }
  const auto plan = lazy::train::make_plan(config, arguments.plan);
  fmt::print("{}", arguments.json ? plan.dump(2) + "\n" : lazy::train::plan_text(plan));
}

void add_plan_options(CLI::App& command, TrainArguments& arguments) {
  auto& plan = arguments.plan;
  plan.gpu_memory_gib = kH200Gib;
  const auto dry_run =
      command.add_flag("--dry-run", arguments.dry_run, "Only print the memory, time and data that the run needs");
  for (CLI::Option* option :
       {command.add_option("--gpus", plan.gpus, "Number of GPUs of the planned run")
            ->check(CLI::Range(1, 1 << 20))
            ->capture_default_str(),
        command.add_option("--gpu", plan.gpu,
                           "GPU model, such as H100 or A100 (default: the GPU of this machine, else H200)"),
        command
            .add_option("--gpu-memory", plan.gpu_memory_gib, "Usable GiB of memory per GPU (default: as on an H200)")
            ->check(lazy::cli::kPositive),
        command
            .add_option("--peak-tflops", plan.speed.peak_tflops,
                        "Dense bf16 TFLOP/s per GPU (default: metrics.peak_tflops, else the value for --gpu)")
            ->check(lazy::cli::kPositive),
        command.add_option("--mfu", arguments.mfu, "Assumed model FLOPs utilization (MFU) for the time estimate")
            ->check(CLI::Range(0.001, 1.0)),
        command.add_option("--measured", arguments.measured,
                           "Output of `lazy bench train --json`, for the time estimate"),
        command
            .add_option("--scaling", plan.speed.scaling,
                        "Scaling efficiency: speed of N GPUs divided by N times the speed of one GPU")
            ->check(CLI::Range(0.01, 1.0)),
        command.add_flag("--json", arguments.json, "Print the plan as JSON")}) {
    option->needs(dry_run);
  }
}

}  // namespace

LAZY_COMMAND(train, "Train a model from a configuration", [](CLI::App& command) {
  auto arguments = std::make_shared<TrainArguments>();
  const auto config =
      command.add_option("config", arguments->config,
                         "Configuration: FILE.toml, FILE.toml+VARIANT, or the folder of a run, which contains it");
  const auto model = command
                         .add_option("--model", arguments->model,
                                     "Model: a name in configs/models, optionally NAME+VARIANT, or a file")
                         ->check(lazy::cli::suggestions(lazy::shipped_names(lazy::ShippedKind::model)))
                         ->excludes(config);
  command.add_option("--recipe", arguments->recipe, "Training recipe for --model: a name in configs/recipes or a file")
      ->check(lazy::cli::suggestions(lazy::shipped_names(lazy::ShippedKind::recipe)))
      ->needs(model);
  lazy::cli::add_repeated_option(command, "--set", arguments->settings,
                                 "Override a key: section.key=value (may be repeated)");
  command.add_option("--from", arguments->from,
                     "Model folder or run folder to start from instead of random weights (sets model.from)");
  command.add_flag("--resume", arguments->resume,
                   "Continue from the newest usable checkpoint of the run, if there is one");
  add_plan_options(command, *arguments);
  command.footer(R"(
Examples:
  lazy train --model lazy-340m --recipe 15b --set data.corpus=corpora/fineweb
  lazy train --model lazy-340m+no-elastic --recipe 15b --set data.corpus=corpora/fineweb
  lazy train configs/sink-55m.toml+softmax --set data.corpus=corpora/fineweb
  lazy train small.toml --set training.steps=200 --set optimizer.lr=3e-3 --set training.output=runs/try
  lazy train runs/try --resume
  lazy train finetune.toml --from smollm2-lazy
  torchrun --no-python --nproc-per-node 8 --max-restarts 3 lazy train big.toml --resume
  lazy train --model lazy-340m --recipe 15b --dry-run --gpus 64 --mfu 0.4

Writes training.output (default: runs/NAME-OF-THE-CONFIGURATION or runs/MODEL-RECIPE): log.jsonl, tensorboard/,
checkpoints/ and, at the end, model/. SIGINT, SIGTERM and SIGUSR1 save a checkpoint and end with 128 + signal. Exit code
2: an error in the configuration or the data; 1: the loss is no longer finite, or the disk is full.)");
  command.callback([arguments] {
    if (arguments->config.empty() && (arguments->model.empty() || arguments->recipe.empty()))
      lazy::fail("train", "expected a configuration, or --model and --recipe");
    arguments->config = arguments->config.empty() ? lazy::compose_config(arguments->model, arguments->recipe)
                                                  : lazy::resolve_config(arguments->config);
    // A run folder is accepted in place of a configuration: it contains config.toml.
    const std::filesystem::path run_config = std::filesystem::path(arguments->config) / "config.toml";
    if (std::filesystem::is_regular_file(run_config)) arguments->config = run_config.string();
    if (!arguments->from.empty()) arguments->settings.push_back("model.from=" + nlohmann::json(arguments->from).dump());
    if (arguments->dry_run) {  // the plan does not read the corpus, so data.corpus may be missing
      auto config = lazy::Config::load(arguments->config, arguments->settings);
      if (!config.section("data").has("corpus")) arguments->settings.push_back("data.corpus=corpus");
    } else {
      lazy::cli::share_cores();  // before the configuration is read, because reading it may load CUDA's libraries
    }
    const auto config = lazy::train::TrainConfig::load(arguments->config, arguments->settings);
    if (arguments->dry_run) return print_plan(config, *arguments);
    lazy::install_stop_handlers();
    const auto result = lazy::train::train(config, arguments->resume);
    if (!result.model.empty()) fmt::print("{}\n", result.model.string());
  });
});
