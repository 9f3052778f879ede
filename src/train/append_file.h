// A file that only grows, one whole record a system call: a reader, or a crash, never sees records interleaved, and a
// full disk leaves no part of one.
#pragma once
#include <filesystem>
#include <string_view>

namespace lazy::train {

class AppendFile {
 public:
  explicit AppendFile(const std::filesystem::path& path);  // created if absent; RunError with the system's reason
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);  // RunError, for example on a full disk
  void sync();                           // to the disk itself

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace lazy::train
