// `lazy convert`: writes a GGUF file as a Hugging Face folder.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "convert_gguf.h"

#include "core/error.h"
#include "core/file.h"
#include "core/output_folder.h"
#include "core/progress.h"
#include "core/python_service.h"
#include "core/stop.h"
#include "data/tokenizer.h"
#include "model/config.h"

namespace lazy {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kTensorSeconds = 600;

struct ConvertOptions {
  std::string file, folder, dtype = "fp32";
};

void run(const ConvertOptions& options) {
  const fs::path target = new_folder(options.folder, "convert");
  if (!fs::is_regular_file(options.file)) fail("convert", "{}: expected a GGUF file", options.file);
  install_stop_handlers();
  OutputFolder temporary(target);
  PythonService python("convert", options.file, kConvertGguf,
                       Json{{"file", fs::absolute(options.file).string()},
                            {"folder", temporary.path().string()},
                            {"dtype", options.dtype}});
  const Json ready = python.start();
  const auto tensors = ready.at("tensors").get<int64_t>();
  Progress progress("converting", static_cast<uint64_t>(tensors), "tensors");
  for (int64_t n = 0; n < tensors; ++n) {
    if (stop_requested()) fail_run("convert", "stopped; nothing was written");
    const Json answer = python.ask({{"next", n}}, kTensorSeconds);
    if (answer.contains("error")) fail("convert", "{}: {}", options.file, answer["error"].get<std::string>());
    progress.update(static_cast<uint64_t>(n + 1));
  }
  progress.finish();
  // What was written can be read.
  ModelConfig::from_directory(temporary.path());
  load_tokenizer(temporary.path().string());
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {}, {} tensors)\n", options.file, target.string(), options.dtype,
             ready.at("architecture").get<std::string>(), tensors);
}

}  // namespace

LAZY_COMMAND(convert, "Write a GGUF file as a Hugging Face folder", [](cli::Command command) {
  auto o = std::make_shared<ConvertOptions>();
  command.add_option("file", o->file, "GGUF file of a Llama, Mistral, Qwen2, Qwen3, Gemma 2 or Gemma 3 model")
      .required();
  command.add_option("folder", o->folder, "Folder to write; must not exist yet").required();
  command.add_option("--dtype", o->dtype, "Precision of the weights").show_default().one_of({"fp32", "bf16"});
  command.footer(
      "Quantized weights are dequantized. Needs Python with the packages gguf and numpy (pip install gguf numpy).\n"
      "Example:\n"
      "  lazy convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
