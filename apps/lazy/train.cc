// `lazy train CONFIG.toml`: trains a model; see docs/configuration.md and docs/run-directory.md.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "core/stop.h"
#include "train/config.h"
#include "train/trainer.h"

namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> settings;
  bool resume = false;
};

}  // namespace

LAZY_COMMAND(train, "Train a model from a configuration", [](CLI::App& command) {
  auto arguments = std::make_shared<TrainArguments>();
  command.add_option("config", arguments->config, "Configuration (TOML)")->required();
  command.add_option("--set", arguments->settings, "Override a key: section.key=value (may be repeated)")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command.add_flag("--resume", arguments->resume, "Continue from the newest usable checkpoint of the run, if there is one");
  command.footer(R"(
Examples:
  lazy train configs/lazy-340m-15b.toml --set data.corpus=corpora/fineweb
  lazy train small.toml --set training.steps=200 --set optimizer.lr=3e-3 --set training.output=runs/try
  lazy train runs/try/config.toml --resume
  torchrun --no-python --nproc-per-node 8 --max-restarts 3 lazy train big.toml --resume

Writes training.output (default runs/NAME-OF-THE-CONFIGURATION): log.jsonl, tensorboard/, checkpoints/ and, at the
end, model/. SIGINT and SIGTERM save a checkpoint and end with 128 + signal (130, 143). Exit code 2: something in the
configuration or the data must be mended; 1: the loss is no longer finite, or the disk is full.)");
  command.callback([arguments] {
    const auto config = lazy::train::TrainConfig::load(arguments->config, arguments->settings);
    lazy::install_stop_handlers();
    const auto result = lazy::train::train(config, arguments->resume);
    if (!result.model.empty()) fmt::print("{}\n", result.model.string());
  });
});
