// Errors that a person reads: what was expected, what was received, prefixed by the operation.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "core/text.h"

namespace lazy {

// The user can mend it: wrong arguments, a bad file, a bad configuration. Exit code 2. What it quotes may come from any
// file: control characters are shown as escapes, so that an error is one line and moves no cursor.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text) : std::runtime_error(escape_control(text)) {}
  virtual int exit_code() const noexcept { return 2; }
};

// The run failed although what was asked was right: a full disk, a diverged loss, a defect of ours. Exit code 1.
class RunError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 1; }
};

// fail("safetensors", "{}: header says {} bytes, the file has {}", path, a, b)
//   -> Error "safetensors: model.safetensors: header says ..."
template <typename... Args>
[[noreturn]] void fail(const char* operation, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format("{}: {}", operation, fmt::format(format, std::forward<Args>(args)...)));
}

template <typename... Args>
[[noreturn]] void fail_run(const char* operation, fmt::format_string<Args...> format, Args&&... args) {
  throw RunError(fmt::format("{}: {}", operation, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace lazy
