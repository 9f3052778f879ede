// `lazy convert`: converts a GGUF file or a PyTorch checkpoint to a Hugging Face folder with safetensors, or converts a
// softmax model to a Lazy Attention model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "command.h"
#include "convert_gguf.h"
#include "convert_torch.h"
#include "model_path.h"

#include "core/error.h"
#include "core/file.h"
#include "core/output_folder.h"
#include "core/progress.h"
#include "core/python_json.h"
#include "core/python_service.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/tokenizer.h"
#include "generate/model_folder.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/weight_map.h"

namespace lazy {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kTensorSeconds = 600;

struct ConvertOptions {
  std::string source, folder, output, to, dtype;
  int64_t window = 512;
  bool download = false, from_torch = false;
};

// Returns the type in which the weights of a folder are written: "bf16" if config.json names this type, otherwise
// "fp32", which also represents float16 weights exactly.
std::string stored_dtype(const fs::path& folder) {
  const auto config = parse_python_json<Json>(read_file(folder / "config.json"));
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) return config[key] == "bfloat16" ? "bf16" : "fp32";
  }
  return "fp32";
}

void convert_to_lazy(const ConvertOptions& options, const fs::path& target) {
  const fs::path from = cli::resolve_model_folder("convert", options.source, options.download);
  install_stop_handlers();
  to_lazy(ModelConfig::from_directory(from), options.window);  // throws an Error if the model cannot be converted
  const ModelFolder folder = load_model_folder(from);
  end_if_stopped("convert", "nothing was written");
  const ModelConfig config = to_lazy(folder.model.config(), options.window);
  const LanguageModel model = folder.model.converted(config);
  const std::string dtype = options.dtype.empty() ? stored_dtype(from) : options.dtype;
  OutputFolder temporary(target);
  save_model_folder(model, *folder.tokenizer, from, temporary.path(), dtype);
  end_if_stopped("convert", "nothing was written");
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {}, tau = 0{})\n", from.string(), target.string(), dtype, config.architecture(),
             config.attention.distance_bias_window > 0
                 ? fmt::format(", distance bias over {} tokens", config.attention.distance_bias_window)
                 : "");
}

Json ask(PythonService& python, const std::string& source, const Json& question) {
  Json answer = python.ask_until_stopped(question, kTensorSeconds);
  if (answer.contains("error")) fail("convert", "{}: {}", source, answer["error"].get<std::string>());
  return answer;
}

void ask_for_each_tensor(PythonService& python, const std::string& source, size_t tensors,
                         const std::function<Json(size_t)>& question) {
  Progress progress("converting", tensors, "tensors");
  for (size_t n = 0; n < tensors; ++n) {
    ask(python, source, question(n));
    progress.update(n + 1);
  }
  progress.finish();
}

void convert_gguf(const ConvertOptions& options, const fs::path& target) {
  if (!fs::is_regular_file(options.source)) {
    fail("convert", "{}: expected a GGUF file{}", options.source,
         fs::is_directory(options.source) ? ", found a folder: the other commands read a model folder directly, and "
                                            "--to lazy converts its model to Lazy Attention"
         : fs::exists(options.source)     ? ", found a file of another kind"
                                          : ", but no such file exists");
  }
  install_stop_handlers();
  const std::string dtype = options.dtype.empty() ? "fp32" : options.dtype;
  OutputFolder temporary(target);
  PythonService python(
      "convert", options.source, kConvertGguf,
      Json{{"file", fs::absolute(options.source).string()}, {"folder", temporary.path().string()}, {"dtype", dtype}});
  const Json ready = python.start();
  const auto tensors = ready.at("tensors").get<int64_t>();
  ask_for_each_tensor(python, options.source, static_cast<size_t>(tensors), [](size_t n) { return Json{{"next", n}}; });
  // Check that the written configuration can be read.
  ModelConfig::from_directory(temporary.path());
  load_tokenizer(temporary.path().string());
  end_if_stopped("convert", "nothing was written");
  const auto bytes = static_cast<double>(fs::file_size(temporary.path() / "model.safetensors"));
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {}, {} tensors, {}{})\n", options.source, target.string(), dtype,
             ready.at("architecture").get<std::string>(), tensors, human_bytes(bytes),
             dtype == "fp32" ? "; --dtype bf16 halves the size" : "");
}

// Returns the checkpoint file for `source`: the file itself, or in a folder pytorch_model.bin or its index file.
fs::path torch_checkpoint(const fs::path& source) {
  if (fs::is_regular_file(source)) return source;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (fs::exists(source / name)) return source / name;
  }
  fail("convert", "{}: expected a checkpoint file of PyTorch, or a folder with pytorch_model.bin or its .index.json{}",
       source.string(), fs::exists(source) ? "" : ", but no such file or folder exists");
}

// Returns the checkpoint files, each with the names of its tensors, or null for all tensors of the file.
Json torch_files(const fs::path& checkpoint) {
  if (checkpoint.extension() != ".json") return Json::array({{checkpoint.string(), nullptr}});
  Json files = Json::array();
  for (const auto& [name, tensors] : read_weight_map(checkpoint, "convert")) {
    const fs::path shard = checkpoint.parent_path() / name;
    if (!fs::is_regular_file(shard)) {
      fail("convert", "{}: weight_map: expected the file {} in the same folder, found none", checkpoint.string(), name);
    }
    files.push_back({shard.string(), tensors});
  }
  return files;
}

// Copies the files of the configuration, tokenizer, chat templates and generation settings unchanged.
void copy_text_files(const fs::path& from, const fs::path& to) {
  for (const auto& item : fs::directory_iterator(from)) {
    const fs::path name = item.path().filename(), kind = name.extension();
    const bool copied = name == "additional_chat_templates" ||
                        (item.is_regular_file() && !name.string().ends_with(".index.json") &&
                         (kind == ".json" || kind == ".jinja" || kind == ".txt" || kind == ".model"));
    if (copied) fs::copy(item.path(), to / name, fs::copy_options::recursive);
  }
}

void convert_torch(const ConvertOptions& options, const fs::path& target) {
  const std::string source = cli::resolve_torch_checkpoint("convert", options.source, options.download);
  const fs::path checkpoint = fs::absolute(torch_checkpoint(source)), folder = checkpoint.parent_path();
  if (!fs::exists(folder / "config.json"))
    fail("convert", "{}: expected config.json in the folder of the weights, found none", folder.string());
  ModelConfig config = ModelConfig::from_directory(folder);
  install_stop_handlers();
  PythonService python("convert", folder.string(), kConvertTorch, Json{{"files", torch_files(checkpoint)}});
  python.start();
  auto names = ask(python, folder.string(), {{"open", true}}).at("tensors").get<std::vector<std::string>>();
  std::erase_if(names, [&](const std::string& name) { return is_ignored_weight(name, config); });
  OutputFolder temporary(target);
  const fs::path parts = temporary.path() / "parts";
  fs::create_directory(parts);
  const auto part = [&](size_t n) { return parts / fmt::format("{}.safetensors", n); };
  ask_for_each_tensor(python, folder.string(), names.size(), [&](size_t n) {
    return Json{{"write", names[n]}, {"to", part(n).string()}};
  });
  NamedTensors tensors;  // the tensors are memory-mapped from the temporary files
  for (size_t n = 0; n < names.size(); ++n) tensors.emplace_back(names[n], SafetensorsFile(part(n)).tensor(names[n]));
  write_safetensors_sharded(temporary.path(), "model", tensors);
  tensors.clear();
  fs::remove_all(parts);
  copy_text_files(folder, temporary.path());
  const auto written = open_weights(temporary.path());
  tie_without_head(*written, config);
  match_weights(*written, folder, config);
  end_if_stopped("convert", "nothing was written");
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {} tensors)\n", source, target.string(), config.architecture(), names.size());
}

void run(const ConvertOptions& options) {
  if (options.folder.empty() == options.output.empty())
    fail("convert", "expected one output folder: either as the second argument or with --output");
  const fs::path target = new_folder(options.folder.empty() ? options.output : options.folder, "convert");
  if (options.to == "lazy") return convert_to_lazy(options, target);
  if (options.from_torch) return convert_torch(options, target);
  convert_gguf(options, target);
}

}  // namespace

LAZY_COMMAND(
    convert, "Convert a GGUF file or a PyTorch checkpoint to a model folder, or a softmax model to Lazy Attention",
    [](CLI::App& command) {
      auto o = std::make_shared<ConvertOptions>();
      command
          .add_option(
              "source", o->source,
              "GGUF file of a Llama, Mistral, Qwen2, Qwen3, Gemma 2 or Gemma 3 model; with --from-torch, a checkpoint "
              "file or its folder; with --to, a model or run folder")
          ->required();
      command.add_option("folder", o->folder, "Folder to write; must not exist yet");
      command.add_option("-o,--output", o->output, "Folder to write, in place of the second argument");
      const auto to = command.add_option("--to", o->to, "Kind of model to write")->check(cli::one_of({"lazy"}));
      command.add_option("--window", o->window, "Number of distances with a learned bias per head; 0: no bias")
          ->check(CLI::Range(0, 1 << 24))
          ->capture_default_str()
          ->needs(to);
      const auto dtype =
          command
              .add_option("--dtype", o->dtype,
                          "Precision of the weights (default: fp32 for GGUF, otherwise the precision of the source)")
              ->check(cli::one_of({"fp32", "bf16"}));
      command
          .add_flag("--from-torch", o->from_torch,
                    "Convert pytorch_model.bin, its sharded form, or another file written by torch.save, in a folder "
                    "with config.json")
          ->excludes(to)
          ->excludes(dtype);
      cli::add_download_option(command, o->download);
      command.footer(fmt::format(
          "GGUF: quantized weights are dequantized. Needs Python with the packages gguf and numpy (pip install gguf "
          "numpy).\n"
          "--from-torch: weights keep their precision. Needs Python with the packages torch (2.6 or newer) and "
          "safetensors.\n"
          "torch.load(weights_only=True) reads the file, so that Python code in it is refused and never run.\n"
          "--to lazy: softmax becomes Elastic-Softmax with tau = 0 in every head, and each head gets a distance bias "
          "of\n"
          "zeros. Before training, the new model computes the same function as the given model. To shift tau during\n"
          "training, set offset_schedule in [model] of the configuration of `lazy train`. Families: {}, and the "
          "models\n"
          "of `lazy train`.\n"
          "Examples:\n"
          "  lazy convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
          "  lazy convert gpt2 --from-torch --output gpt2-safetensors\n"
          "  lazy convert smollm2 --to lazy --output smollm2-lazy --window 512",
          fmt::join(convertible_families(), ", ")));
      command.callback([o] { run(*o); });
    });

}  // namespace lazy
