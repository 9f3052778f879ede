#include "core/python_child.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "core/log.h"

namespace lazy {

namespace {

// Python code that runs before each script. It suppresses the traceback that Python would print if the script writes to
// its standard output after this program has ended.
constexpr const char* kEndQuietly = R"(import os, select, sys

def end_quietly(kind, error, trace):
    if issubclass(kind, KeyboardInterrupt):
        os._exit(130)
    output = select.poll()
    output.register(1, 0)  # with event mask 0, poll() only reports that the reader has closed the output
    if output.poll(0):
        os._exit(1)
    sys.__excepthook__(kind, error, trace)

sys.excepthook = end_quietly
)";

// The command line of a Python child: the interpreter and its arguments. The pointers in `argv` refer to `words`.
struct PythonCommand {
  std::vector<std::string> words;
  std::vector<char*> argv;

  PythonCommand(const std::string& script, const std::vector<std::string>& arguments) {
    std::string python = python_interpreter();
    // The child changes to the root directory before the interpreter is started, so a relative path is made absolute.
    // Symbolic links are not resolved, because the interpreter of a virtual environment is a link.
    if (python.find('/') != std::string::npos) python = std::filesystem::absolute(python).string();
    words = {python, "-X", "utf8", "-c", kEndQuietly + script};
    words.insert(words.end(), arguments.begin(), arguments.end());
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
  }
  PythonCommand(const PythonCommand&) = delete;
  PythonCommand& operator=(const PythonCommand&) = delete;
};

}  // namespace

PythonInterpreter find_python_interpreter(const std::string& of_build) {
  if (const char* named = std::getenv("LAZY_PYTHON"); named && *named) return {named, "LAZY_PYTHON", ""};
  std::error_code unreadable;  // ignored; set, for example, if the folder of another user cannot be read
  int error = ::access(of_build.c_str(), X_OK) == 0 ? 0 : errno;
  if (error == 0 && !std::filesystem::is_regular_file(of_build, unreadable)) error = EACCES;
  if (error == 0) return {of_build, "the environment that the program was built with", ""};
  // If the interpreter of the build does not exist, for example because the build folder was moved, no warning is
  // needed.
  const bool absent = (error == ENOENT || error == ENOTDIR) && !std::filesystem::is_symlink(of_build, unreadable);
  return {"python3", "PATH", absent ? "" : "cannot start Python (" + of_build + "): " + std::strerror(error)};
}

PythonInterpreter find_python_interpreter() { return find_python_interpreter(LAZY_BUILD_PYTHON); }

std::string python_interpreter() {
  const PythonInterpreter found = find_python_interpreter();
  static std::once_flag warned;
  if (!found.rejected.empty()) {
    std::call_once(warned, [&] {
      log::warn("{}; using {} from {} (LAZY_PYTHON selects another interpreter)", found.rejected, found.path,
                found.origin);
    });
  }
  return found.path;
}

int spawn_python(pid_t& child, const std::string& script, const std::vector<std::string>& arguments,
                 posix_spawn_file_actions_t& actions) {
  PythonCommand command(script, arguments);
  if (const int error = ::posix_spawn_file_actions_addchdir_np(&actions, "/")) return error;
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  sigaddset(&blocked, SIGINT);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &blocked);
  const int error =
      ::posix_spawnp(&child, command.words.front().c_str(), &actions, &attributes, command.argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  return error;
}

int exec_python(const std::string& script, const std::vector<std::string>& arguments) {
  PythonCommand command(script, arguments);
  if (::chdir("/") != 0) return errno;
  ::execvp(command.words.front().c_str(), command.argv.data());
  return errno;
}

}  // namespace lazy
