// Configuration files of configs/ on which the models of recipes are based. They are embedded in the program so that it
// runs from any folder.
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

// Returns every embedded file as a pair (path below configs/, content).
const std::vector<std::pair<std::string_view, std::string_view>>& embedded_configs();
// Returns the content of one embedded file. Throws an Error if no embedded file has this name.
std::string embedded_config(std::string_view name);
// Writes the embedded files into `folder`; existing files with equal content are not touched.
void write_configs(const std::filesystem::path& folder);

// Reads a list of overrides of the form section.key=value from a section.
Words read_overrides(ConfigSection& section, const std::string& key);

// Returns the training configuration of a training step. `configs` is the folder that write_configs wrote. The folders
// `output` and `corpus` do not need to exist yet.
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
