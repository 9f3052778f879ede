#include "core/python_child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "core/python_service.h"
#include "core/stop.h"

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

// The build records the path of its Python interpreter. If no file exists at this path, the interpreter was never
// installed, and the message does not mention it. If the path exists but cannot be started, the message names it,
// because the packages installed for this interpreter are then missing.
TEST_F(PythonInterpreterChoice, RejectedInterpreterOfBuildIsNamed) {
  const EnvironmentVariable empty("LAZY_PYTHON", "");
  const fs::path text = file("text", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(folder_ / "removed", folder_ / "dangling");
  for (const fs::path& path : {folder_ / "dangling", folder_, text}) {
    EXPECT_THAT(find_python_interpreter(path).rejected, ::testing::HasSubstr("(" + path.string() + "): ")) << path;
  }
  EXPECT_THAT(find_python_interpreter(text).rejected, ::testing::HasSubstr("Permission denied"));
  for (const fs::path& path : {fs::path(), folder_ / "absent", file("python", fs::perms::owner_all)}) {
    EXPECT_EQ(find_python_interpreter(path).rejected, "") << path;
  }
}

TEST_F(PythonInterpreterChoice, ProgramRecordsInterpreterOfItsBuild) {
  const EnvironmentVariable empty("LAZY_PYTHON", "");
  const fs::path build = LAZY_TEST_PYTHON;
  EXPECT_EQ(python_interpreter(), build.is_absolute() ? build.string() : "python3");
}

struct Ended {
  int status;
  std::string errors;
};

// Runs a script whose standard output is a pipe. read: whether this process keeps the reading end of the pipe open.
Ended run_script(const std::string& script, bool read) {
  int ends[2];
  const int errors = ::memfd_create("errors", MFD_CLOEXEC);
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  if (!read) ::close(ends[0]);
  pid_t child = -1;
  EXPECT_EQ(spawn_python(child, script, {}, actions), 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  Ended ended{0, std::string(1 << 16, '\0')};
  EXPECT_EQ(::waitpid(child, &ended.status, 0), child);
  ended.errors.resize(static_cast<size_t>(::pread(errors, ended.errors.data(), ended.errors.size(), 0)));
  if (read) ::close(ends[0]);
  ::close(errors);
  return ended;
}

TEST(PythonChild, WithoutReader_EndsWithoutTraceback) {
  const std::string write = "import sys\nsys.stdout.buffer.write(b'x' * (1 << 20))\nsys.stdout.buffer.flush()\n";
  for (const std::string& script : {write, std::string("raise ValueError('incomplete question')\n")}) {
    const Ended ended = run_script(script, /*read=*/false);
    EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1) << ended.status;
    EXPECT_EQ(ended.errors, "");
  }
}

TEST(PythonChild, WithReader_PrintsTraceback) {
  const Ended ended = run_script("raise ValueError('a fault of the script')\n", /*read=*/true);
  EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1) << ended.status;
  EXPECT_THAT(ended.errors, ::testing::HasSubstr("ValueError: a fault of the script"));
}

// Ctrl-C in a terminal and the command `timeout` send a signal to all processes in the program's process group. A
// Python child process must not receive it.
TEST(PythonChild, IsNotInterruptedWithTheProgram) {
  const std::string script =
      "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(7 if os.getpgrp() == os.getpid() else 8)\n";
  const Ended ended = run_script(script, /*read=*/true);
  EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 7) << ended.status;
  EXPECT_EQ(ended.errors, "");
}

// This Python script answers the first line immediately and every later line after half a second.
const char* const kSlowScript = R"(import sys, time
for n, line in enumerate(sys.stdin.buffer):
    time.sleep(0.5 if n else 0)
    sys.stdout.buffer.write(b'{"ready": true}\n')
    sys.stdout.buffer.flush()
)";

// Sends SIGINT to this process after a short time, from a separate thread.
std::thread interrupt_soon() {
  return std::thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(::getpid(), SIGINT);
  });
}

// A process never resets its signal flag, so each case runs in a child process.
TEST(PythonService, StopSignal_EndsTheStartAndWorkThatIsGivenUp) {
  for (const char* script : {"import sys\nsys.stdin.buffer.read()\n", kSlowScript}) {
    EXPECT_EXIT(
        {
          install_stop_handlers();
          PythonService python("convert", "model.gguf", script, nlohmann::ordered_json::object());
          interrupt_soon().detach();
          try {
            python.start();
            for (int n = 0; n < 100; ++n) python.ask_until_stopped(nlohmann::ordered_json::object(), 60);
          } catch (const Interrupted& error) {
            ::_exit(error.exit_code());
          }
        },
        ::testing::ExitedWithCode(128 + SIGINT), "^$");
  }
}

TEST(PythonService, StopSignal_DoesNotEndAQuestion) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        PythonService python("data", "tokenizer", kSlowScript, nlohmann::ordered_json::object());
        python.start();
        interrupt_soon().join();
        const nlohmann::ordered_json answer = python.ask(nlohmann::ordered_json::object(), 60);
        ::_exit(answer.contains("ready") && stop_requested() ? 7 : 8);
      },
      ::testing::ExitedWithCode(7), "^$");
}

TEST(PythonService, FailedStart_NamesTheInterpreter) {
  const EnvironmentVariable named("LAZY_PYTHON", "/bin/false");
  PythonService python("serve", "chat template", kSlowScript, nlohmann::ordered_json::object());
  try {
    python.start();
    ADD_FAILURE() << "started";
  } catch (const RunError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/bin/false"));
  }
}

}  // namespace
}  // namespace lazy
