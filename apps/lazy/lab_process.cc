#include "lab_process.h"

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/python_child.h"
#include "start_lab.h"

namespace lazy::cli {
namespace fs = std::filesystem;

std::string absolute_path(const std::string& path) { return path.empty() ? path : fs::absolute(path).string(); }

std::string program_path() { return fs::read_symlink("/proc/self/exe").string(); }

std::vector<std::string> lab_arguments(const char* command, nlohmann::ordered_json arguments) {
  const fs::path parent = fs::path(program_path()).parent_path().parent_path();
  arguments["command"] = command;
  // The folders that may contain the package: the first in an installation, the second in a source tree with a build
  // folder.
  arguments["package_folders"] = {(parent / "share" / "lazy" / "python").string(), (parent / "python").string()};
  return {arguments.dump()};
}

void start_lab(const char* command, nlohmann::ordered_json arguments) {
  fail_to_start_python(command, exec_python(kStartLab, lab_arguments(command, std::move(arguments))));
}

void fail_to_start_python(const char* operation, int error) {
  fail(operation, "cannot start Python ({}): {}; LAZY_PYTHON selects another interpreter", python_interpreter(),
       std::strerror(error));
}

}  // namespace lazy::cli
