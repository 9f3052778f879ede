#include "core/clock.h"

#include <ctime>

namespace lazy {

std::string today() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&now));
  return date;
}

}  // namespace lazy
