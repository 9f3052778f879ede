#include "model_path.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "command.h"

#include "core/error.h"
#include "core/hub_name.h"
#include "core/log.h"
#include "core/python_service.h"
#include "download_model.h"
#include "train/checkpoint.h"

namespace lazy::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// While this object exists, SIGINT and SIGTERM end the program immediately. It is used during downloads:
// huggingface_hub can continue a partial download in the next call.
class DefaultSignals {
 public:
  DefaultSignals() {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~DefaultSignals() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  DefaultSignals(const DefaultSignals&) = delete;
  DefaultSignals& operator=(const DefaultSignals&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

constexpr int kDownloadSeconds = 7 * 24 * 3600;

// Downloads the model `name` with huggingface_hub unless it is cached, and returns its folder in the cache. weights:
// file name pattern of the weights, or null to download no weights.
std::string downloaded(const char* operation, const std::string& name, const char* weights) {
  Json patterns{"*.json", "tokenizer.model", "*.txt", "*.jinja"};
  if (weights) patterns.push_back(weights);
  // Subfolders of a model contain other formats; "consolidated" files contain a second copy of the weights.
  PythonService python(operation, name, kDownloadModel,
                       {{"name", name}, {"patterns", patterns}, {"ignored", {"*/*", "consolidated*"}}});
  const DefaultSignals signals;
  python.start();
  const Json answer = python.ask({{"download", name}}, kDownloadSeconds);
  if (answer.contains("error")) {
    const auto problem = answer.at("error").get<std::string>();
    if (answer.at("unreachable").get<bool>()) fail_run(operation, "{}: --download: {}", name, problem);
    fail(operation, "{}: --download: {}", name, problem);
  }
  const auto folder = answer.at("folder").get<std::string>();
  log::info("the model {} is in the folder {}", name, folder);
  return folder;
}

bool is_gguf_file(const std::string& path) {
  char magic[4]{};
  return fs::is_regular_file(path) && std::ifstream(path, std::ios::binary).read(magic, sizeof magic) &&
         std::string_view(magic, sizeof magic) == "GGUF";
}

}  // namespace

void refuse_gguf(const char* operation, const std::string& path) {
  if (!is_gguf_file(path)) return;
  fail(operation,
       "{}: expected a folder in the format of Hugging Face, found a GGUF file; `lazy convert {} FOLDER` writes one",
       path, shell_word(path));
}

std::string resolve_tokenizer(const char* operation, const std::string& source, bool download) {
  refuse_gguf(operation, source);
  return download && source != "bytes" && is_hub_name(source) ? downloaded(operation, source, nullptr) : source;
}

std::string resolve_torch_checkpoint(const char* operation, const std::string& source, bool download) {
  return download && is_hub_name(source) ? downloaded(operation, source, "pytorch_model*.bin") : source;
}

std::string resolve_model_folder(const char* operation, const std::string& path, bool download) {
  if (download && is_hub_name(path)) {
    const std::string folder = downloaded(operation, path, "*.safetensors");
    const auto is_weights = [](const auto& item) { return item.path().extension() == ".safetensors"; };
    if (fs::exists(fs::path(folder) / "config.json") &&
        std::none_of(fs::directory_iterator(folder), fs::directory_iterator(), is_weights)) {
      fail(operation,
           "{}: --download: expected *.safetensors, found none; `lazy convert {} --from-torch --download --output "
           "FOLDER` downloads and converts pytorch_model.bin",
           path, path);
    }
    return resolve_model_folder(operation, folder, false);
  }
  if (!fs::exists(path)) {
    const std::string hint = hub_download_hint(path);
    fail(operation, "{}: expected a model folder or a run folder, found nothing there{}{}", path, hint,
         hint.empty() ? "" : ", or add --download");
  }
  refuse_gguf(operation, path);
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
    Json settings;
    try {
      settings = train::verify_checkpoint(checkpoint).settings;
    } catch (const Error& error) {  // a training run that is in progress may delete this checkpoint meanwhile
      problem = error.what();
      continue;
    }
    const std::string total = settings.contains("training.steps") ? " of " + settings.at("training.steps").dump() : "";
    log::warn("{}: the training has not written its final model; using the checkpoint of step {}{}, {}", path, *step,
              total, checkpoint);
    return checkpoint;
  }
  fail(operation, "{}: expected a finished model or a valid checkpoint, found none{}", path,
       problem.empty() ? "" : " (" + problem + ")");
}

}  // namespace lazy::cli
