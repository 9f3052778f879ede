// Defines torch_error_of, a variant of error_of for the operators, whose checks throw PyTorch's c10::Error.
#pragma once
#include <c10/util/Exception.h>

#include <string>

#include "support/error_of.h"

namespace lazy::ops::test {

// Returns the message of the c10::Error that `action` throws, without its backtrace, or "" if it throws nothing.
std::string torch_error_of(const auto& action) {
  try {
    action();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

}  // namespace lazy::ops::test
