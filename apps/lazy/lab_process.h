// Starts the Python package lazy_lab, whose modules are the commands lab, uptrain and report.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lazy::cli {

// Makes the path absolute, because Python runs in the root directory. An empty path stays empty.
std::string absolute_path(const std::string& path);

std::string program_path();  // returns the path of the executable file of this program

// Returns the arguments of Python for a command of lazy_lab: the script start_lab.py gets one JSON object, which
// consists of `arguments` and of the keys that start_lab.py reads. The module lazy_lab.COMMAND runs, unless `arguments`
// has another name as "module".
std::vector<std::string> lab_arguments(const char* command, nlohmann::ordered_json arguments);

// Replaces this process by Python, which runs the command.
[[noreturn]] void start_lab(const char* command, nlohmann::ordered_json arguments);

// Throws an Error for `error`, the errno of an attempt to start Python.
[[noreturn]] void fail_to_start_python(const char* operation, int error);

}  // namespace lazy::cli
