#include "repro/configs.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace lazy::repro {
namespace fs = std::filesystem;

std::string embedded_config(std::string_view name) {
  for (const auto& [path, text] : embedded_configs()) {
    if (path == name) return std::string(text);
  }
  fail("repro", "configuration {} is not embedded in this program", name);
}

Words read_overrides(ConfigSection& section, const std::string& key) {
  Words out = section.strings(key, {});
  for (const std::string& item : out) {
    const size_t dot = item.find('.'), equals = item.find('=');
    if (dot == std::string::npos || equals == std::string::npos || dot > equals)
      fail("config", "{}: {}: expected section.key=value, found '{}'", section.where(key), key, item);
  }
  return out;
}

void write_configs(const fs::path& folder) {
  for (const auto& [name, text] : embedded_configs()) {
    if (name.starts_with("repro/")) continue;  // files of repro/ are recipes, which no configuration extends
    const fs::path path = folder / name;
    if (fs::exists(path) && read_file(path) == text) continue;
    fs::create_directories(path.parent_path());
    write_file_atomic(path, text);
  }
}

train::TrainConfig train_config(const Step& step, const fs::path& configs, const fs::path& corpus,
                                const fs::path& output, const std::vector<std::string>& more) {
  const std::string text = "# " + step.id + "\nextends = " + step.settings.at("extends").dump() + "\n";
  const fs::path path = configs / (step.id + ".toml");
  if (!fs::exists(path) || read_file(path) != text) write_file_atomic(path, text);
  auto overrides = step.settings.at("overrides").get<std::vector<std::string>>();
  overrides.push_back("data.corpus=" + Json(fs::absolute(corpus).string()).dump());
  overrides.push_back("training.output=" + Json(fs::absolute(output).string()).dump());
  overrides.push_back("training.name=" + Json(step.id).dump());
  overrides.insert(overrides.end(), more.begin(), more.end());
  return train::TrainConfig::load(path, overrides);
}

}  // namespace lazy::repro
