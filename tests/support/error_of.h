// What an action's Error says, for tests of messages.
#pragma once
#include <string>

#include "core/error.h"

namespace lazy {

// Empty when it throws none.
std::string error_of(const auto& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace lazy
