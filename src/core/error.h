// Errors for users: one line that begins with the operation and says what was expected and what was found.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "core/text.h"

namespace lazy {

// The user can fix the cause: wrong arguments, a bad file, a bad configuration. Exit code 2. Control characters in the
// text, which may quote any file, are escaped.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text) : std::runtime_error(escape_control(text)) {}
  virtual int exit_code() const noexcept { return 2; }
};

// The run failed on a valid request: a full disk, a diverged loss, an internal error. Exit code 1.
class RunError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 1; }
};

namespace detail {
// Not templates: formatting is compiled once, not in every file that can fail.
[[noreturn]] void fail(const char* operation, fmt::string_view format, fmt::format_args args);
[[noreturn]] void fail_run(const char* operation, fmt::string_view format, fmt::format_args args);
}  // namespace detail

// fail("safetensors", "{}: header says {} bytes, the file has {}", path, a, b)
//   -> Error "safetensors: model.safetensors: header says ..."
template <typename... Args>
[[noreturn]] void fail(const char* operation, fmt::format_string<Args...> format, Args&&... args) {
  detail::fail(operation, format, fmt::make_format_args(args...));
}

// The same as a RunError.
template <typename... Args>
[[noreturn]] void fail_run(const char* operation, fmt::format_string<Args...> format, Args&&... args) {
  detail::fail_run(operation, format, fmt::make_format_args(args...));
}

}  // namespace lazy
