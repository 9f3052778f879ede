// Runs lm-evaluation-harness for comparison, if it is installed. LAZY_LM_EVAL_PYTHON names a Python interpreter that
// can import lm_eval (version 0.4.13). The default is the interpreter that the build was configured with.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace lazy::eval {

inline std::string harness_python() {
  const char* python = std::getenv("LAZY_LM_EVAL_PYTHON");
  return python ? python : LAZY_TEST_PYTHON;
}

inline bool harness_present() {
  return std::system(fmt::format("'{}' -c 'import lm_eval.utils' > /dev/null 2>&1", harness_python()).c_str()) == 0;
}

#define LAZY_NEEDS_HARNESS()                                                         \
  if (!harness_present())                                                            \
  GTEST_SKIP() << harness_python()                                                   \
               << " cannot import lm_eval: not compared with lm-evaluation-harness " \
                  "(set LAZY_LM_EVAL_PYTHON to an interpreter that can)"

// Runs a script that writes JSON, and returns the JSON. The first argument of the script is the name of the output
// file, the second one is the name of a file that contains `input`.
inline nlohmann::json script_output(const std::string& python, const std::string& script, const std::string& input) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("harness_{}", ::getpid());
  fs::create_directories(folder);
  std::ofstream(folder / "script.py") << script;
  std::ofstream(folder / "input", std::ios::binary) << input;
  const std::string command = fmt::format("'{}' '{}' '{}' '{}'", python, (folder / "script.py").string(),
                                          (folder / "out.json").string(), (folder / "input").string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  nlohmann::json result = nlohmann::json::parse(std::ifstream(folder / "out.json"));
  fs::remove_all(folder);
  return result;
}

inline nlohmann::json harness_output(const std::string& script, const std::string& input = "") {
  return script_output(harness_python(), script, input);
}
// Runs a script that needs only Python itself, with the interpreter of the build.
inline nlohmann::json python_output(const std::string& script, const std::string& input = "") {
  return script_output(LAZY_TEST_PYTHON, script, input);
}

}  // namespace lazy::eval
