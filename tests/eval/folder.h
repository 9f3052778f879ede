// A temporary folder for one test.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "core/file.h"

namespace lazy::eval {

struct Folder {
  Folder() {
    static std::atomic<int> number = 0;
    path = std::filesystem::path(testing::TempDir()) / fmt::format("eval_{}_{}", ::getpid(), ++number);
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path / name).parent_path());
    write_file_atomic(path / name, content);
  }
  std::filesystem::path path;
};

}  // namespace lazy::eval
