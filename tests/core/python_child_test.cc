#include "core/python_child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/environment_variable.h"

namespace lazy {
namespace {
namespace fs = std::filesystem;
using testing_support::EnvironmentVariable;

class PythonInterpreterChoice : public ::testing::Test {
 protected:
  fs::path file(const char* name, fs::perms permissions) const {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n";
    fs::permissions(path, permissions);
    return path;
  }
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::temp_directory_path() / ("lazy-python-" + std::to_string(::getpid()));
};

TEST_F(PythonInterpreterChoice, EnvironmentVariableThenBuildThenPath) {
  const fs::path build = file("python", fs::perms::owner_all);
  {
    const EnvironmentVariable named("LAZY_PYTHON", "/elsewhere/python");
    EXPECT_EQ(find_python_interpreter(build).path, "/elsewhere/python");
  }
  const EnvironmentVariable empty("LAZY_PYTHON", "");
  EXPECT_EQ(find_python_interpreter(build).path, build.string());
  EXPECT_EQ(find_python_interpreter("").path, "python3");
}

TEST_F(PythonInterpreterChoice, InterpreterOfBuildMustBeAnExecutableFile) {
  const EnvironmentVariable empty("LAZY_PYTHON", "");
  fs::create_symlink(folder_ / "removed", folder_ / "dangling");
  fs::create_symlink(file("python", fs::perms::owner_all), folder_ / "link");
  EXPECT_EQ(find_python_interpreter(folder_ / "link").path, (folder_ / "link").string());
  for (const fs::path& path :
       {folder_ / "absent", folder_ / "dangling", folder_, file("text", fs::perms::owner_read | fs::perms::owner_write),
        folder_ / "text" / "python"})
    EXPECT_EQ(find_python_interpreter(path).path, "python3") << path;
}

TEST_F(PythonInterpreterChoice, ProgramRecordsInterpreterOfItsBuild) {
  const EnvironmentVariable empty("LAZY_PYTHON", "");
  const fs::path build = LAZY_TEST_PYTHON;
  EXPECT_EQ(python_interpreter(), build.is_absolute() ? build.string() : "python3");
}

}  // namespace
}  // namespace lazy
