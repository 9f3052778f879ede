#include "core/python_child.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace lazy {

namespace {

// The interpreter and its arguments. The pointers in `argv` refer to `words`.
struct PythonCommand {
  std::vector<std::string> words;
  std::vector<char*> argv;

  PythonCommand(const std::string& script, const std::vector<std::string>& arguments) {
    std::string python = python_interpreter();
    // A relative path would be resolved after the change of directory, so it is made absolute. Symbolic links are not
    // resolved, because the interpreter of a virtual environment is a link.
    if (python.find('/') != std::string::npos) python = std::filesystem::absolute(python).string();
    words = {python, "-X", "utf8", "-c", script};
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
  if (const char* named = std::getenv("LAZY_PYTHON"); named && *named) return {named, "LAZY_PYTHON"};
  std::error_code unreadable;  // for example a folder of another user
  if (std::filesystem::is_regular_file(of_build, unreadable) && ::access(of_build.c_str(), X_OK) == 0) {
    return {of_build, "the environment that the program was built with"};
  }
  return {"python3", "PATH"};
}

PythonInterpreter find_python_interpreter() { return find_python_interpreter(LAZY_BUILD_PYTHON); }

std::string python_interpreter() { return find_python_interpreter().path; }

int spawn_python(pid_t& child, const std::string& script, const std::vector<std::string>& arguments,
                 posix_spawn_file_actions_t& actions, const posix_spawnattr_t* attributes) {
  PythonCommand command(script, arguments);
  if (const int error = ::posix_spawn_file_actions_addchdir_np(&actions, "/")) return error;
  return ::posix_spawnp(&child, command.words.front().c_str(), &actions, attributes, command.argv.data(), environ);
}

int exec_python(const std::string& script, const std::vector<std::string>& arguments) {
  PythonCommand command(script, arguments);
  if (::chdir("/") != 0) return errno;
  ::execvp(command.words.front().c_str(), command.argv.data());
  return errno;
}

}  // namespace lazy
