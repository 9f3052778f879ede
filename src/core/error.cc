#include "core/error.h"

namespace lazy::detail {

void fail(const char* operation, fmt::string_view format, fmt::format_args args) {
  throw Error(fmt::format("{}: {}", operation, fmt::vformat(format, args)));
}

void fail_run(const char* operation, fmt::string_view format, fmt::format_args args) {
  throw RunError(fmt::format("{}: {}", operation, fmt::vformat(format, args)));
}

}  // namespace lazy::detail
