#include "report/settings.h"

#include <toml++/toml.h>
#include <sstream>

#include "core/error.h"
#include "core/toml_text.h"

namespace lazy::report {
namespace {

void flatten(const toml::table& table, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>* out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, name, out);
    } else if (const auto* text = node.as_string()) {
      out->emplace_back(name, text->get());
    } else {
      std::ostringstream value;
      node.visit([&](const auto& concrete) { value << concrete; });
      out->emplace_back(name, value.str());
    }
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> flatten_toml(const std::string& text, const std::string& file) {
  std::vector<std::pair<std::string, std::string>> settings;
  refuse_stray_characters(text, "report", file);
  try {
    flatten(toml::parse(text), "", &settings);
  } catch (const toml::parse_error& e) {
    fail("report", "{}:{}: {}", file, static_cast<int64_t>(e.source().begin.line), std::string(e.description()));
  }
  return settings;
}

}  // namespace lazy::report
