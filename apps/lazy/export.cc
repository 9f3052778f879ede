// `lazy export`: writes a run's model as a Hugging Face folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "model_path.h"

#include "core/error.h"
#include "core/file.h"
#include "core/output_folder.h"
#include "core/python_json.h"
#include "generate/model_folder.h"
#include "model/config.h"
#include "train/checkpoint.h"

namespace lazy {
namespace {

namespace fs = std::filesystem;

struct ExportOptions {
  std::string run, model, dtype = "bf16";
  int64_t step = -1;
  bool download = false;
};

// The folder with the weights: that of the given step, or else the one that the path names.
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

// Files of a model folder that the export does not change: they belong to the tokenizer, to chats and to generation.
constexpr const char* kCopied[] = {"chat_template.jinja",     "chat_template.json", "additional_chat_templates",
                                   "special_tokens_map.json", "added_tokens.json",  "generation_config.json"};

// Keys of config.json that describe the source's files, which the export does not copy or writes in another precision.
constexpr const char* kOfSourceFiles[] = {"auto_map",      "compression_config",  "dtype",
                                          "torch_dtype",   "quantization_config", "transformers_weights",
                                          "_name_or_path", "transformers_version"};

// Writes infinities and NaN as transformers 5 does: JSON has none.
void spell_special_floats(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (nlohmann::ordered_json& element : value) spell_special_floats(element);
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    value = {{"__float__", std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity"}};
  }
}

// Adds the keys of the source that this program accepts but does not read, for example task_specific_params. A key that
// it reads is written already, perhaps by another name.
void keep_other_keys(const nlohmann::ordered_json& source, const std::string& file, nlohmann::ordered_json& written) {
  const auto read = [&](const nlohmann::ordered_json& json) {
    nlohmann::json config = json;
    restore_special_floats(config);
    return ModelConfig::from_json(config, file).to_json();
  };
  if (source.value("model_type", "") != written.value("model_type", "")) return;
  const nlohmann::ordered_json expected = read(source);
  for (const auto& [key, value] : source.items()) {
    const bool excluded =
        std::find(std::begin(kOfSourceFiles), std::end(kOfSourceFiles), key) != std::end(kOfSourceFiles);
    if (written.contains(key) || excluded) continue;
    nlohmann::ordered_json without = source, with = written;
    without.erase(key);
    spell_special_floats(with[key] = value);
    try {
      if (read(without) == expected && read(with) == expected) written = std::move(with);
    } catch (const Error&) {  // the key is required
    }
  }
}

// Copies them, and gives the settings that the source leaves open the ids of its tokenizer.
void keep_metadata(const fs::path& from, const fs::path& to, const Tokenizer& tokenizer) {
  for (const char* name : kCopied) {
    if (!fs::exists(from / name)) continue;
    fs::copy(from / name, to / name, fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  }
  const auto source = parse_python_json<nlohmann::ordered_json>(read_file(from / "config.json"));
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (!fs::exists(to / name) || (std::string(name) != "config.json" && fs::exists(from / name))) continue;
    auto written = parse_python_json<nlohmann::ordered_json>(read_file(to / name));
    for (const auto& [key, id] : {std::pair("bos_token_id", tokenizer.bos_id()),
                                  {"eos_token_id", tokenizer.eos_id()},
                                  {"pad_token_id", std::optional<int32_t>()}}) {
      if (source.contains(key)) {
        written[key] = source[key];
      } else if (id) {
        written[key] = *id;
      }
    }
    if (std::string(name) == "config.json") keep_other_keys(source, (from / "config.json").string(), written);
    write_file_atomic(to / name, written.dump(2) + "\n");
  }
}

void run(const ExportOptions& options) {
  const fs::path target = new_folder(options.model, "export");
  const fs::path from = source(options);
  const ModelFolder folder = load_model_folder(from);
  OutputFolder temporary(target);
  folder.model.save(temporary.path(), options.dtype);
  folder.tokenizer->save(temporary.path());
  keep_metadata(from, temporary.path(), *folder.tokenizer);
  temporary.publish(/*replace=*/false);
  fmt::print("{} -> {} ({}, {})\n", from.string(), target.string(), options.dtype,
             folder.model.config().architecture());
}

}  // namespace

LAZY_COMMAND(export, "Write a run's model as a Hugging Face folder", [](cli::Command command) {
  auto o = std::make_shared<ExportOptions>();
  command.add_option("run", o->run, "Run folder, checkpoint or model folder").required();
  command.add_option("model", o->model, "Folder to write; must not exist yet").required();
  cli::add_download_option(command, o->download);
  command.add_option("--dtype", o->dtype, "Precision of the weights").show_default().one_of({"fp32", "bf16"});
  command.add_option("--step", o->step,
                     "Export this checkpoint instead of the finished model or the newest checkpoint");
  command.footer(
      "Examples:\n"
      "  lazy export build/demo/softmax my-model\n"
      "  lazy export runs/lazy-340m my-model --step 20000 --dtype fp32");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
