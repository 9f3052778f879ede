#include "model_path.h"

#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/hub_name.h"
#include "core/log.h"
#include "train/checkpoint.h"

namespace lazy::cli {

namespace fs = std::filesystem;

std::string resolve_model_folder(const char* operation, const std::string& path) {
  if (!fs::exists(path)) {
    fail(operation, "{}: expected a model folder or a run folder, found nothing there{}", path,
         hub_download_hint(path));
  }
  if (!fs::is_directory(path)) fail(operation, "{}: expected a model folder or a run folder, found a file", path);
  if (fs::exists(fs::path(path) / "config.json")) return path;
  if (fs::exists(fs::path(path) / "model" / "config.json")) return (fs::path(path) / "model").string();
  if (!fs::exists(fs::path(path) / "checkpoints")) {
    fail(operation,
         "{}: expected a model folder (with config.json) or a run folder of `lazy train` (with model/ or "
         "checkpoints/), found neither",
         path);
  }
  const train::CheckpointStore store(fs::path(path) / "checkpoints", 0);
  const std::vector<int64_t> steps = store.steps();
  std::string problem;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string checkpoint = store.path(*step).string();
    try {
      train::verify_checkpoint(checkpoint);
    } catch (const Error& error) {  // the training may be removing it
      problem = error.what();
      continue;
    }
    log::info("{} has no finished model: using {}", path, checkpoint);
    return checkpoint;
  }
  fail(operation, "{}: expected a finished model or a valid checkpoint, found none{}", path,
       problem.empty() ? "" : " (" + problem + ")");
}

}  // namespace lazy::cli
