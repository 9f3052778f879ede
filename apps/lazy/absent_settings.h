// For commands that read a training configuration and do not train: what `lazy train` needs and they do not may be left
// out of it.
#pragma once
#include <string>
#include <vector>

#include "core/config.h"

namespace lazy {

// Adds the setting section.key=value where neither the file nor an override has the key.
inline void set_if_absent(Config& config, const std::string& section, const std::string& key, const std::string& value,
                          std::vector<std::string>& settings) {
  if (!config.section(section).has(key)) settings.push_back(section + "." + key + "=" + value);
}

}  // namespace lazy
