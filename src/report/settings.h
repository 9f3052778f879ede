// A resolved configuration as a flat list, for showing and comparing.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace lazy::report {

// ("section.key", value as text) in alphabetic order of sections and keys. Error names file and line.
std::vector<std::pair<std::string, std::string>> flatten_toml(const std::string& text, const std::string& file);

}  // namespace lazy::report
