// A folder that goes away with its owner: plans write configurations, and nothing of a plan should stay.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <string>

namespace lazy::repro {

struct TemporaryFolder {
  TemporaryFolder() : path(std::filesystem::temp_directory_path() / ("lazy-repro-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path);
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
