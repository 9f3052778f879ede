#include "core/python_child.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace lazy {

std::string python_interpreter() {
  const char* named = std::getenv("LAZY_PYTHON");
  return named && *named ? named : "python3";
}

int spawn_python(pid_t& child, const std::string& script, const std::vector<std::string>& arguments,
                 posix_spawn_file_actions_t& actions, const posix_spawnattr_t* attributes) {
  std::string python = python_interpreter();
  // A relative path would be looked up after the change of directory. Links stay: a virtual environment is a link.
  if (python.find('/') != std::string::npos) python = std::filesystem::absolute(python).string();
  if (const int error = ::posix_spawn_file_actions_addchdir_np(&actions, "/")) return error;
  std::vector<std::string> words{python, "-X", "utf8", "-c", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return ::posix_spawnp(&child, python.c_str(), &actions, attributes, argv.data(), environ);
}

}  // namespace lazy
