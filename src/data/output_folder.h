// A folder that appears complete or not at all: written under a temporary name, then renamed.
#pragma once
#include <filesystem>

namespace lazy {

class OutputFolder {
 public:
  // Makes TARGET.tmp-PID, and removes what runs that were killed left behind under such names.
  explicit OutputFolder(const std::filesystem::path& target);
  ~OutputFolder();  // removes the folder unless it was published
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Renames to the target. What stands there is replaced: the caller has checked that it may go.
  void publish();

 private:
  std::filesystem::path target_, path_;
};

}  // namespace lazy
