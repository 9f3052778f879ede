// `lazy export`: writes the model of a run as a Hugging Face folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "command.h"
#include "model_path.h"

#include "core/error.h"
#include "core/output_folder.h"
#include "core/stop.h"
#include "generate/model_folder.h"
#include "train/checkpoint.h"

namespace lazy {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string run, model, dtype = "bf16";
  int64_t step = -1;
  bool download = false;
};

// Returns the folder with the weights to export: the checkpoint of the step that the user has given, or without a step
// the model folder that the path refers to.
fs::path source(const ExportOptions& options) {
  if (options.step < 0) return cli::resolve_model_folder("export", options.run, options.download);
  const train::CheckpointStore store(fs::path(options.run) / "checkpoints", 0);
  const std::vector<int64_t> steps = store.steps();
  if (std::find(steps.begin(), steps.end(), options.step) == steps.end()) {
    fail("export", "--step {}: {} has {}", options.step, options.run,
         steps.empty() ? "no checkpoints" : fmt::format("checkpoints {}", fmt::join(steps, ", ")));
  }
  train::verify_checkpoint(store.path(options.step));
  return store.path(options.step);
}

void run(const ExportOptions& options) {
  const fs::path target = new_folder(options.model, "export");
  const fs::path from = source(options);
  install_stop_handlers();
  const ModelFolder folder = load_model_folder(from);
  end_if_stopped("export", "nothing was written");
  OutputFolder temporary(target);
  save_model_folder(folder.model, *folder.tokenizer, from, temporary.path(), options.dtype);
  end_if_stopped("export", "nothing was written");
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({} weights{}, {})\n", from.string(), target.string(), options.dtype,
             options.dtype == "bf16" ? "; --dtype fp32 keeps the full precision" : "",
             folder.model.config().architecture());
}

}  // namespace

LAZY_COMMAND(export, "Write a model as a Hugging Face folder, without training state", [](CLI::App& command) {
  auto o = std::make_shared<ExportOptions>();
  command.add_option("model", o->run, "Model folder, run folder of `lazy train`, or checkpoint")->required();
  command.add_option("folder", o->model, "Folder to write; must not exist yet")->required();
  cli::add_download_option(command, o->download);
  command.add_option("--dtype", o->dtype, "Precision of the weights")
      ->capture_default_str()
      ->check(cli::one_of({"fp32", "bf16"}));
  command.add_option("--step", o->step,
                     "For a run folder: export the checkpoint of this step instead of the finished model");
  command.footer(
      "Examples:\n"
      "  lazy export build/demo/softmax my-model\n"
      "  lazy export runs/lazy-340m my-model --step 20000 --dtype fp32\n"
      "  lazy export HuggingFaceTB/SmolLM2-135M my-copy --download");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
