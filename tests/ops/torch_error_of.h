// error_of for the operators, whose checks throw PyTorch's c10::Error.
#pragma once
#include <c10/util/Exception.h>

#include <string>

#include "support/error_of.h"

namespace lazy::ops::test {

// The message of the c10::Error that `action` throws, without a backtrace. Empty if it throws nothing.
std::string torch_error_of(const auto& action) {
  try {
    action();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

}  // namespace lazy::ops::test
