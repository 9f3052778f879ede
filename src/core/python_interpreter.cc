#include "core/python_interpreter.h"

#include <cstdlib>

namespace lazy {

std::string python_interpreter() {
  const char* named = std::getenv("LAZY_PYTHON");
  return named && *named ? named : "python3";
}

}  // namespace lazy
