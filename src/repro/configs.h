// The configurations of configs/ that recipes extend, embedded in the program so that it runs from any folder.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "repro/plan.h"
#include "train/config.h"

namespace lazy::repro {

// (path below configs/, content)
const std::vector<std::pair<std::string_view, std::string_view>>& embedded_configs();
// The content of one of them. Error when the program has none of this name.
std::string embedded_config(std::string_view name);
// Writes them into `folder`; existing files with equal content are not touched.
void write_configs(const std::filesystem::path& folder);

// A section's list of section.key=value.
Words read_overrides(ConfigSection& section, const std::string& key);

// The configuration of a training step. `configs` is where write_configs put them; `output` and `corpus` may not exist
// yet.
train::TrainConfig train_config(const Step& step, const std::filesystem::path& configs,
                                const std::filesystem::path& corpus, const std::filesystem::path& output,
                                const std::vector<std::string>& more = {});

// A temporary folder for configurations, removed by the destructor.
struct TemporaryFolder {
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "lazy-repro-XXXXXX";
    if (!::mkdtemp(name.data())) fail_run("repro", "{}: {}", name, std::strerror(errno));
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path path;
};

}  // namespace lazy::repro
