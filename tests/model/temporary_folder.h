// A temporary folder that is removed at the end of a test, and functions that run Python for comparisons with other
// programs.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "support/run_command.h"

namespace lazy::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lazy-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs a script with the Python interpreter that the build was configured with.
inline std::pair<int, std::string> run_python(const TemporaryFolder& folder, const std::string& script,
                                              const std::string& arguments = "") {
  write_text(folder / "script.py", script);
  return run_command(
      fmt::format("OMP_NUM_THREADS=2 '{}' '{}' {}", LAZY_TEST_PYTHON, (folder / "script.py").string(), arguments));
}

// Returns "" if the modules can be imported, otherwise the reason to skip the test.
inline std::string missing_python_modules(const std::string& modules) {
  const auto [status, out] = run_command(fmt::format("'{}' -c 'import {}'", LAZY_TEST_PYTHON, modules));
  if (status == 0) return "";
  return fmt::format("{} cannot import {}", LAZY_TEST_PYTHON, modules);
}

}  // namespace lazy::testing
