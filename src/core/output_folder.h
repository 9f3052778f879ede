// An output folder that gets its final name only when it is complete.
#pragma once
#include <filesystem>

namespace lazy {

// Returns the absolute path of a folder to write, without a trailing slash. Throws Error "OPERATION: ..." if it exists
// and is not an empty folder.
std::filesystem::path new_folder(const std::filesystem::path& folder, const char* operation);

class OutputFolder {
 public:
  // Creates TARGET.tmp-XXXXXX with a random name that no other process uses, even in another container. If TARGET is a
  // symbolic link, its target is used. Also removes the TARGET.tmp-* folders that terminated processes have left. Such
  // a folder contains a marker file that this class has written and that no running process has locked (flock). Throws
  // RunError.
  explicit OutputFolder(const std::filesystem::path& target);
  ~OutputFolder();  // removes the folder unless it was published
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Renames the folder to the target. An existing target is replaced if `replace` is true or if it is an empty folder.
  // Otherwise throws RunError; its message contains the path at which the finished folder is kept.
  void publish(bool replace);

 private:
  void unmark();
  std::filesystem::path target_, path_;
  int lock_ = -1;
};

}  // namespace lazy
