// Errors that are reported to users. The message is one line: it starts with the operation and states what was expected
// and what was found.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "core/text.h"

namespace lazy {

// An error whose cause the user can fix: wrong arguments, an invalid file, an invalid configuration. Exit code 2.
// Control characters in the text are escaped, because the text may quote any file.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text) : std::runtime_error(escape_control(text)) {}
  virtual int exit_code() const noexcept { return 2; }
};

// An error of a run whose arguments and files were valid, for example a full disk, a diverged loss or an internal
// error. Exit code 1.
class RunError : public Error {
 public:
  using Error::Error;
  int exit_code() const noexcept override { return 1; }
};

namespace detail {
// These functions are not templates, so that the formatting code is compiled only once.
[[noreturn]] void fail(const char* operation, fmt::string_view format, fmt::format_args args);
[[noreturn]] void fail_run(const char* operation, fmt::string_view format, fmt::format_args args);
}  // namespace detail

// Example: fail("safetensors", "{}: header says {} bytes, the file has {}", path, a, b)
//   throws Error "safetensors: model.safetensors: header says ..."
template <typename... Args>
[[noreturn]] void fail(const char* operation, fmt::format_string<Args...> format, Args&&... args) {
  detail::fail(operation, format, fmt::make_format_args(args...));
}

// Throws RunError instead of Error.
template <typename... Args>
[[noreturn]] void fail_run(const char* operation, fmt::format_string<Args...> format, Args&&... args) {
  detail::fail_run(operation, format, fmt::make_format_args(args...));
}

}  // namespace lazy
