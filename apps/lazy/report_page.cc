#include "report_page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/python_child.h"
#include "lab_process.h"
#include "start_lab.h"

namespace lazy::cli {
namespace {

std::vector<std::string> report_arguments(const std::vector<std::string>& inputs, const std::string& output,
                                          const std::string& line) {
  return lab_arguments("report", {{"module", "run_report"},
                                  {"directory", std::filesystem::current_path().string()},
                                  {"inputs", inputs},
                                  {"output", output},
                                  {"line", line},
                                  {"version", LAZY_VERSION}});
}

}  // namespace

void start_report(const std::vector<std::string>& inputs, const std::string& output, const std::string& line) {
  fail_to_start_python("report", exec_python(kStartLab, report_arguments(inputs, output, line)));
}

void write_result_page(const char* operation, const std::string& json, const std::string& output,
                       const std::string& line) {
  // An unnamed file in memory passes the results to the child process. It is removed when both processes have closed
  // it.
  const int file = ::memfd_create("results.json", 0);
  if (file < 0) fail_run(operation, "{}: cannot create a file in memory: {}", output, std::strerror(errno));
  const std::string path = fmt::format("/proc/self/fd/{}", file);
  std::ofstream(path, std::ios::binary) << json;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Standard output is reserved for the results.
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = 0;
  const int error = spawn_python(child, kStartLab, report_arguments({path}, output, line), actions);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(file);
  if (error != 0) fail_to_start_python(operation, error);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail_run(operation, "the page {} was not written; `lazy report FILE.json` writes it from a file of results",
             output);
}

}  // namespace lazy::cli
