// Runs a command line for a test.
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <utility>

namespace lazy {

// Runs a command. Returns its exit status (-1 if a signal ended the process), and its standard output and standard
// error.
inline std::pair<int, std::string> run_command(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return {-1, "popen failed"};
  std::string out;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out};
}

}  // namespace lazy
