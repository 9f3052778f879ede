// `lazy convert`: writes a GGUF file as a Hugging Face folder, or a softmax model as one of Lazy Attention.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "convert_gguf.h"
#include "model_path.h"

#include "core/error.h"
#include "core/file.h"
#include "core/output_folder.h"
#include "core/progress.h"
#include "core/python_json.h"
#include "core/python_service.h"
#include "core/stop.h"
#include "data/tokenizer.h"
#include "generate/model_folder.h"
#include "model/config.h"
#include "model/folder_metadata.h"

namespace lazy {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kTensorSeconds = 600;

struct ConvertOptions {
  std::string source, folder, output, to, dtype;
  int64_t window = 512;
  bool download = false;
};

// The precision of a folder's weights: bf16 where config.json says so, else fp32, which holds float16 exactly.
std::string stored_dtype(const fs::path& folder) {
  const auto config = parse_python_json<Json>(read_file(folder / "config.json"));
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) return config[key] == "bfloat16" ? "bf16" : "fp32";
  }
  return "fp32";
}

void convert_to_lazy(const ConvertOptions& options, const fs::path& target) {
  const fs::path from = cli::resolve_model_folder("convert", options.source, options.download);
  const ModelFolder folder = load_model_folder(from);
  const ModelConfig config = to_lazy(folder.model.config(), options.window);
  const LanguageModel model = folder.model.converted(config);
  const std::string dtype = options.dtype.empty() ? stored_dtype(from) : options.dtype;
  OutputFolder temporary(target);
  model.save(temporary.path(), dtype);
  folder.tokenizer->save(temporary.path());
  keep_metadata(from, temporary.path(), {folder.tokenizer->bos_id(), folder.tokenizer->eos_id()});
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {}, tau = 0{})\n", from.string(), target.string(), dtype, config.architecture(),
             config.attention.distance_bias_window > 0
                 ? fmt::format(", distance bias over {} tokens", config.attention.distance_bias_window)
                 : "");
}

void convert_gguf(const ConvertOptions& options, const fs::path& target) {
  if (!fs::is_regular_file(options.source)) {
    fail("convert", "{}: expected a GGUF file{}", options.source,
         fs::is_directory(options.source)
             ? ", found a folder: the other commands read it directly, and --to lazy converts it to Lazy Attention"
             : "");
  }
  install_stop_handlers();
  const std::string dtype = options.dtype.empty() ? "fp32" : options.dtype;
  OutputFolder temporary(target);
  PythonService python(
      "convert", options.source, kConvertGguf,
      Json{{"file", fs::absolute(options.source).string()}, {"folder", temporary.path().string()}, {"dtype", dtype}});
  const Json ready = python.start();
  const auto tensors = ready.at("tensors").get<int64_t>();
  Progress progress("converting", static_cast<uint64_t>(tensors), "tensors");
  for (int64_t n = 0; n < tensors; ++n) {
    if (stop_requested()) fail_run("convert", "stopped; nothing was written");
    const Json answer = python.ask({{"next", n}}, kTensorSeconds);
    if (answer.contains("error")) fail("convert", "{}: {}", options.source, answer["error"].get<std::string>());
    progress.update(static_cast<uint64_t>(n + 1));
  }
  progress.finish();
  // What was written can be read.
  ModelConfig::from_directory(temporary.path());
  load_tokenizer(temporary.path().string());
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {}, {} tensors)\n", options.source, target.string(), dtype,
             ready.at("architecture").get<std::string>(), tensors);
}

void run(const ConvertOptions& options) {
  if (options.folder.empty() == options.output.empty())
    fail("convert", "expected one folder to write: as the second argument, or with --output");
  const fs::path target = new_folder(options.folder.empty() ? options.output : options.folder, "convert");
  if (options.to == "lazy") return convert_to_lazy(options, target);
  convert_gguf(options, target);
}

}  // namespace

LAZY_COMMAND(
    convert, "Convert a GGUF file to a model folder, or a softmax model to Lazy Attention", [](cli::Command command) {
      auto o = std::make_shared<ConvertOptions>();
      command
          .add_option(
              "source", o->source,
              "GGUF file of a Llama, Mistral, Qwen2, Qwen3, Gemma 2 or Gemma 3 model; with --to, a model or run "
              "folder")
          .required();
      command.add_option("folder", o->folder, "Folder to write; must not exist yet");
      command.add_option("-o,--output", o->output, "The same");
      const auto to = command.add_option("--to", o->to, "Kind of model to write").one_of({"lazy"});
      command.add_option("--window", o->window, "Entries of the distance bias for each head; 0: none")
          .range(0, 1 << 24)
          .show_default()
          .needs(to);
      command.add_option("--dtype", o->dtype, "Precision of the weights (default: fp32 for GGUF, else the source's)")
          .one_of({"fp32", "bf16"});
      cli::add_download_option(command, o->download);
      command.footer(fmt::format(
          "GGUF: quantized weights are dequantized. Needs Python with the packages gguf and numpy (pip install gguf "
          "numpy).\n"
          "--to lazy: softmax becomes Elastic-Softmax with tau = 0 in every head, and each head gets a distance bias "
          "of\n"
          "zeros. The new model computes the same function until it is trained: set offset_schedule in [model] of the\n"
          "training's configuration. Families: {}, and the models of `lazy train`.\n"
          "Examples:\n"
          "  lazy convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
          "  lazy convert smollm2 --to lazy --output smollm2-lazy --window 512",
          fmt::join(convertible_families(), ", ")));
      command.callback([o] { run(*o); });
    });

}  // namespace lazy
