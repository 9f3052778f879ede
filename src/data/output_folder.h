// A folder that appears atomically: written under a temporary name, then renamed.
#pragma once
#include <filesystem>

namespace lazy {

class OutputFolder {
 public:
  // Creates TARGET.tmp-PID and removes such folders of processes that no longer run.
  explicit OutputFolder(const std::filesystem::path& target);
  ~OutputFolder();  // removes the folder unless it was published
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Renames to the target and replaces an existing folder there.
  void publish();

 private:
  std::filesystem::path target_, path_;
};

}  // namespace lazy
