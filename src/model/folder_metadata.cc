#include "model/folder_metadata.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/python_json.h"
#include "model/config.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

// Files that are copied unchanged. They describe the tokenizer, the chat format and the generation settings.
constexpr const char* kCopied[] = {"chat_template.jinja",     "chat_template.json", "additional_chat_templates",
                                   "special_tokens_map.json", "added_tokens.json",  "generation_config.json"};

// Keys of config.json that describe the files of the source folder. They are not copied, because the files of the new
// folder may have a different precision.
constexpr const char* kOfSourceFiles[] = {"auto_map",      "compression_config",  "dtype",
                                          "torch_dtype",   "quantization_config", "transformers_weights",
                                          "_name_or_path", "transformers_version"};

// Writes infinities and NaN in the notation of transformers 5, because JSON cannot represent them.
void spell_special_floats(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (nlohmann::ordered_json& element : value) spell_special_floats(element);
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    value = {{"__float__", std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity"}};
  }
}

// Copies the keys of the source that this program accepts but does not use, for example task_specific_params. Keys that
// the program reads have been written already, possibly under another name.
void keep_other_keys(const nlohmann::ordered_json& source, const std::string& file, nlohmann::ordered_json& written) {
  const auto read = [&](const nlohmann::ordered_json& json) {
    nlohmann::json config = json;
    restore_special_floats(config);
    return ModelConfig::from_json(config, file);
  };
  const auto text = [&](const nlohmann::ordered_json& json) { return read(json).to_json(); };
  const ModelConfig from = read(source), to = read(written);
  const auto family = [](const ModelConfig& config) {
    return without_conversion(config).to_json().value("model_type", "");
  };
  if (family(from) != family(to)) return;
  const nlohmann::ordered_json before = from.to_json(), after = to.to_json();
  for (const auto& [key, value] : source.items()) {
    const bool excluded =
        std::find(std::begin(kOfSourceFiles), std::end(kOfSourceFiles), key) != std::end(kOfSourceFiles);
    if (written.contains(key) || excluded) continue;
    nlohmann::ordered_json without = source, with = written;
    without.erase(key);
    spell_special_floats(with[key] = value);
    try {
      if (text(without) == before && text(with) == after) written = std::move(with);
    } catch (const Error&) {  // config.json is invalid without the key, so the program reads the key: do not copy it
    }
  }
}

}  // namespace

void keep_metadata(const fs::path& from, const fs::path& to, const SpecialIds& tokenizer) {
  for (const char* name : kCopied) {
    if (!fs::exists(from / name)) continue;
    fs::copy(from / name, to / name, fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  }
  const auto source = parse_python_json<nlohmann::ordered_json>(read_file(from / "config.json"));
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (!fs::exists(to / name) || (std::string(name) != "config.json" && fs::exists(from / name))) continue;
    auto written = parse_python_json<nlohmann::ordered_json>(read_file(to / name));
    for (const auto& [key, id] : {std::pair("bos_token_id", tokenizer.bos),
                                  {"eos_token_id", tokenizer.eos},
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

}  // namespace lazy
